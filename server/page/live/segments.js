// The panel of segments, a page at a time. Their number is that of the counters: names are requested only when the user
// wants to see others, and on a small server with each refresh.

const SEGMENTS = 50;
const MOST_REFRESHED = 5000;
const segmentsTable = grid("Segments", "packed");
let pages = [""], shownPage = null;
onRestart.push(() => turnTo([""]));

const segmentsForm = element("form", { role: "search", ariaLabel: "Segments" },
  element("label", { className: "grow" }, "Name contains",
    element("input", { className: "long", name: "contains", autocomplete: "off", spellcheck: false })),
  element("div", { className: "buttons" }, element("button", { className: "main" }, "Find"),
    element("button", { type: "button", name: "previous", disabled: true }, "Previous"),
    element("button", { type: "button", name: "next", disabled: true }, "Next"),
    element("label", { className: "row" },
      element("input", { type: "checkbox", name: "indexes" }), " Include indexes")));

const segmentsPanel = addPanel({
  id: "segments",
  title: "Segments",
  tools: segmentsForm,
  body: [segmentsTable],
  needs: "segments",
  async look() {
    const count = countedNow("segments");
    const isSmall = count === null || count + countedNow("index_segments") <= MOST_REFRESHED;
    if (count !== null) segmentsPanel.count(number(count));
    if (!isSmall && shownPage === pages) return;
    const form = segmentsForm.elements, asked = pages;
    const which = { contains: form.contains.value, indexes: form.indexes.checked };
    const query = { ...which, after: asked.at(-1), limit: SEGMENTS };
    const it = await ask("GET", "/v1/segments", { query, patience: 30000 });
    if (asked !== pages) return;
    shownPage = asked;
    const from = (asked.length - 1) * SEGMENTS, range = `${number(from + 1)} to ${number(from + it.segments.length)}`;
    const shown = it.segments.length ? `${range} of ${number(it.total)}, by name.` : "None.";
    const hint = ` A list of more than ${number(MOST_REFRESHED)} is refreshed by “Find” only.`;
    segmentsPanel.note(isSmall ? shown : shown + hint);
    form.previous.disabled = asked.length === 1;
    form.next.disabled = it.next === null;
    form.next.dataset.after = it.next ?? "";
    fill(segmentsTable, [
      ["Segment", (each) => each.name, "w"],
      ["Length, bytes", (each) => number(each.length), "n"],
      ["Starts at byte", (each) => number(each.start_offset), "n x"],
      ["Sealed", (each) => yes(each.sealed)],
      ["Container", (each) => each.container, "n x"],
      ["Store", (each) => each.store, "n x"],
    ], it.segments, (each) => each.name);
  },
});

/** Shows another page; `to` holds where each page up to it begins. */
function turnTo(to) {
  pages = to;
  lookSoon(0);
}
segmentsForm.addEventListener("submit", (event) => {
  event.preventDefault();
  turnTo([""]);
});
segmentsForm.elements.indexes.addEventListener("change", () => turnTo([""]));
const { next: nextPage, previous: previousPage } = segmentsForm.elements;
nextPage.addEventListener("click", () => nextPage.dataset.after && turnTo([...pages, nextPage.dataset.after]));
previousPage.addEventListener("click", () => pages.length > 1 && turnTo(pages.slice(0, -1)));

// The panel of segments, a page at a time.

const SEGMENTS = 50;
const segmentsTable = grid("Segments");
const pages = [""];
onRestart.push(() => pages.splice(0, pages.length, ""));

const segmentsForm = element("form", { role: "search" },
  element("label", null, "Name contains",
    element("input", { className: "long", name: "contains", autocomplete: "off", spellcheck: false })),
  element("label", { className: "row" }, element("input", { type: "checkbox", name: "indexes" }), " Include indexes"),
  element("button", null, "Find"),
  element("button", { type: "button", name: "previous", disabled: true }, "Previous"),
  element("button", { type: "button", name: "next", disabled: true }, "Next"));

const segmentsPanel = addPanel({
  id: "segments",
  title: "Segments",
  tools: segmentsForm,
  body: [segmentsTable],
  needs: "stores",
  async look() {
    const form = segmentsForm.elements, page = pages.length;
    const query = { contains: form.contains.value, indexes: form.indexes.checked, after: pages.at(-1), limit: SEGMENTS };
    const it = await ask("GET", "/v1/segments", { query });
    if (page !== pages.length) return;
    const from = (page - 1) * SEGMENTS;
    segmentsPanel.count(number(it.total));
    segmentsPanel.note(it.segments.length ? `${number(from + 1)} to ${number(from + it.segments.length)} of ` +
      `${number(it.total)}, by name.` : "There are none.");
    form.previous.disabled = page === 1;
    form.next.disabled = it.next === null;
    form.next.dataset.after = it.next ?? "";
    fill(segmentsTable, [
      ["Segment", (each) => each.name, "w"],
      ["Length", (each) => number(each.length), "n"],
      ["Starts at", (each) => number(each.start_offset), "n x"],
      ["Sealed", (each) => yes(each.sealed)],
      ["Container", (each) => each.container, "n x"],
      ["Store", (each) => each.store, "n x"],
    ], it.segments, (each) => each.name);
  },
});

const turnTo = (change) => {
  change();
  lookSoon(0);
};
segmentsForm.addEventListener("submit", (event) => {
  event.preventDefault();
  turnTo(() => pages.splice(0, pages.length, ""));
});
segmentsForm.elements.indexes.addEventListener("change", () => turnTo(() => pages.splice(0, pages.length, "")));
const { next: nextPage, previous: previousPage } = segmentsForm.elements;
nextPage.addEventListener("click", () => turnTo(() => nextPage.dataset.after && pages.push(nextPage.dataset.after)));
previousPage.addEventListener("click", () => turnTo(() => pages.length > 1 && pages.pop()));

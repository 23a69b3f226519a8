// The panel of segments, a page at a time. Their number is that of the counters: names are requested only when the user
// wants to see others, and on a small server with each refresh.

const MOST_REFRESHED = 5000;
const segmentPager = new Pager();
const namePart = element("input", { className: "long", name: "contains", autocomplete: "off", spellcheck: false });
const withIndexes = element("input", { type: "checkbox", name: "indexes" });
let shownPage = null, shownSegments = [];

const segmentsForm = element("form", { role: "search", ariaLabel: "Segments" },
  element("label", { className: "grow" }, "Name contains", namePart),
  element("div", { className: "buttons" }, element("button", { className: "main" }, "Find"), segmentPager.root,
    element("label", { className: "row" }, withIndexes, " Include indexes")));

addTable({
  id: "segments",
  title: "Segments",
  narrow: "packed",
  tools: segmentsForm,
  needs: "segments",
  columns: [
    ["Segment", (each) => each.name, "w"],
    ["Length, bytes", (each) => number(each.length), "n"],
    ["Starts at byte", (each) => number(each.start_offset), "n x"],
    ["Sealed", (each) => yes(each.sealed)],
    ["Container", (each) => each.container, "n x"],
    ["Store", (each) => each.store, "n x"],
  ],
  keyOf: (each) => each.name,
  async rows({ count, note }) {
    const total = countedNow("segments");
    const isSmall = total === null || total + countedNow("index_segments") <= MOST_REFRESHED;
    if (total !== null) count(number(total));
    if (!isSmall && shownPage === segmentPager.pages) return shownSegments;
    const asked = segmentPager.pages, which = { contains: namePart.value, indexes: withIndexes.checked };
    const it = await ask("GET", "/v1/segments",
      { query: { ...which, after: segmentPager.after, limit: LISTED }, patience: 30000 });
    if (asked !== segmentPager.pages) return shownSegments;
    [shownPage, shownSegments] = [asked, it.segments];
    const range = segmentPager.show(it.segments.length, it.next);
    const listed = it.segments.length ? `${range} of ${number(it.total)}, by name.` : "None.";
    note(isSmall ? listed : `${listed} A list of more than ${number(MOST_REFRESHED)} is refreshed by “Find” only.`);
    return shownSegments;
  },
});
onSubmit(segmentsForm, () => segmentPager.turn());
withIndexes.addEventListener("change", () => segmentPager.turn());

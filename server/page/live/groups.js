// The panel of reader groups: readers, and the position and lag in each segment.

const groupNote = element("p", { className: "note" });
const groupReaders = grid("Readers that are online"), groupSegments = grid("Segments of the group");

addContentsPanel({
  id: "groups",
  title: "Reader groups",
  one: "Reader group",
  open: false,
  columns: [
    ["Group", (each) => each.group, "w"],
    ["State in", (each) => each.kind === "table" ? "a table (Rust, Python)" : "a stream (Java)"],
  ],
  body: [subsection("Readers", groupReaders), subsection("Segments", groupNote, groupSegments)],
  factsOf: (it) => [
    ["Streams", plain(it.streams.join(", ")) || "unknown"],
    ["Not read yet", many(it.lag_bytes, "byte")],
    ["Readers", it.reader_count ? number(it.reader_count) : "none is online"],
  ],
  show(it, _, isWanted) {
    if (!isWanted()) return;
    groupReaders.parentElement.hidden = it.readers.length === 0;
    fill(groupReaders, [
      ["Reader", (each) => each.reader, "w"],
      ["Segments", (each) => number(each.segments), "n"],
      ["Not read yet, bytes", (each) => number(each.lag_bytes), "n"],
    ], it.readers, (each) => each.reader);
    put(groupNote, it.segment_count > it.segments.length
      ? `The first ${number(it.segments.length)} of ${number(it.segment_count)} are shown, and counted.` : "");
    fill(groupSegments, [
      ["Segment", (each) => each.name, "w"],
      ["Reader", (each) => each.reader ?? { unassigned: "none", later: "after others" }[each.status], "w"],
      ["Offset, bytes", (each) => number(each.offset), "n"],
      ["Length, bytes", (each) => each.length === null ? "unknown" : number(each.length), "n"],
      ["Not read yet, bytes", (each) => number(each.lag_bytes), "n"],
    ], it.segments, (each) => each.name);
  },
});

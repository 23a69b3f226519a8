// The panel of key-value tables and their entries.

const tableNote = element("p", { className: "note" });
const tableEntries = grid("Entries of the table"), entryPager = new Pager();

addContentsPanel({
  id: "tables",
  title: "Key-value tables",
  one: "Table",
  open: false,
  columns: [
    ["Table", (each) => each.table, "w"],
    ["Partitions", (each) => number(each.partitions), "n"],
    ["Bytes of primary keys", (each) => number(each.primary_key_bytes), "n"],
    ["Of secondary keys", (each) => number(each.secondary_key_bytes), "n x"],
  ],
  chosen: () => entryPager.turn(),
  body: [subsection("Entries", tableNote, entryPager.root, tableEntries)],
  factsOf: (it) => [
    ["Entries", it.entries === null ? "unknown" : number(it.entries)],
    ["Partitions", number(it.partitions)],
    ["Created", new Date(it.created_ms).toLocaleString("en-GB")],
  ],
  async show(_, parts, isWanted) {
    const asked = entryPager.pages;
    const { entries, next } = await ask("GET", "/v1/tables/{scope}/{table}/entries",
      { parts, query: { as: "readable", limit: LISTED, after: entryPager.after } });
    if (!isWanted() || asked !== entryPager.pages) return;
    entryPager.show(entries.length, next);
    put(tableNote, entries.length ? "By partition, then by key." : "There are none.");
    const content = (each) => each.hex === undefined || each.hex === null ? each.text ?? "" : `0x${each.hex}`;
    fill(tableEntries, [
      ["Key", (each) => content(each.key), "w"],
      ["Value", (each) => oneLine(content(each.value)), "w"],
      ["Version", (each) => number(each.version), "n x"],
    ], entries, (each) => content(each.key));
  },
});

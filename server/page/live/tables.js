// The panel of key-value tables and their entries.

const tableFacts = element("div"), tableNote = element("p", { className: "note" });
const tableEntries = grid("Entries of the table");
const earlierEntries = button("Previous", () => turnEntries(entryPages.slice(0, -1)));
const laterEntries = button("Next", () => turnEntries([...entryPages, laterEntries.dataset.after]));
let entryPages = [""];

function turnEntries(to) {
  entryPages = to;
  lookSoon(0);
}

addContentsPanel({
  id: "tables",
  title: "Key-value tables",
  one: "Table",
  open: false,
  list: (scope, after) => ask("GET", "/v1/tables/{scope}", { parts: { scope }, query: { after, limit: LISTED } }),
  rowsOf: (page) => page.tables,
  nameOf: (each) => each.table,
  columns: [
    ["Table", (each) => each.table, "w"],
    ["Partitions", (each) => number(each.partitions), "n"],
    ["Bytes of primary keys", (each) => number(each.primary_key_bytes), "n"],
    ["Of secondary keys", (each) => number(each.secondary_key_bytes), "n x"],
  ],
  chosen() {
    entryPages = [""];
  },
  show: showTable,
  body: [
    tableFacts,
    subsection("Entries", tableNote, element("div", null, earlierEntries, " ", laterEntries), tableEntries),
  ],
});

async function showTable(scope, table, isWanted) {
  const parts = { scope, table }, asked = entryPages;
  const it = await ask("GET", "/v1/tables/{scope}/{table}", { parts });
  const page = await ask("GET", "/v1/tables/{scope}/{table}/entries",
    { parts, query: { as: "readable", limit: LISTED, after: asked.at(-1) } });
  if (!isWanted() || asked !== entryPages) return;
  const facts = [
    ["Entries", it.entries === null ? "unknown" : number(it.entries)],
    ["Partitions", number(it.partitions)],
    ["Created", new Date(it.created_ms).toLocaleString("en-GB")],
  ];
  refill(tableFacts, facts, () => [pairs(facts)]);
  earlierEntries.disabled = asked.length === 1;
  laterEntries.disabled = page.next === null;
  laterEntries.dataset.after = page.next ?? "";
  put(tableNote, page.entries.length ? "By partition, then by key." : "There are none.");
  const content = (each) => each.hex === undefined || each.hex === null ? each.text ?? "" : `0x${each.hex}`;
  fill(tableEntries, [
    ["Key", (each) => content(each.key), "w"],
    ["Value", (each) => oneLine(content(each.value)), "w"],
    ["Version", (each) => number(each.version), "n x"],
  ], page.entries, (each) => content(each.key));
}

// The panel of streams: policies, segments by epoch with their key ranges, the last events, transactions.

const EPOCHS = 12;  // the last ones are shown, unless another beginning is given
const streamFacts = element("div"), streamPicture = element("div", { className: "picture" });
const streamSegments = grid("Segments by epoch"), streamTail = grid("The last events");
const streamTransactions = grid("Transactions that have not ended");
const streamNotes = { segments: notes(), tail: notes(), transactions: notes() };
const fromEpoch = element("input", { name: "epoch", type: "number", min: "0", placeholder: "last" });
const internalStreams = element("input", { type: "checkbox", name: "internal" });
const wholeTail = button("All segments", () => tailOf(null));
let tailSegment = null;

function notes() {
  return element("p", { className: "note" });
}
function tailOf(segment) {
  tailSegment = segment;
  lookSoon(0);
}
const epochForm = element("form", null, element("label", null, "From epoch", fromEpoch));
epochForm.addEventListener("submit", (event) => event.preventDefault());
fromEpoch.addEventListener("change", () => lookSoon(0));

addContentsPanel({
  id: "streams",
  title: "Streams",
  one: "Stream",
  controls: [element("label", { className: "row" }, internalStreams, " Internal streams")],
  list: (scope, after) => ask("GET", "/v1/streams/{scope}",
    { parts: { scope }, query: { after, limit: LISTED, internal: internalStreams.checked } }),
  rowsOf: (page) => page.streams,
  nameOf: (each) => each.stream,
  columns: [
    ["Stream", (each) => each.stream, "w"],
    ["Open segments", (each) => number(each.open_segments), "n"],
    ["Epoch", (each) => number(each.epoch), "n"],
    ["Transactions", (each) => number(each.transactions), "n"],
    ["Sealed", (each) => yes(each.sealed)],
    ["Tags", (each) => each.tags.join(", "), "w x"],
  ],
  chosen() {
    tailSegment = null;
    fromEpoch.value = "";
  },
  show: showStream,
  body: [
    streamFacts,
    subsection("Segments by epoch", epochForm, streamPicture, streamNotes.segments, streamSegments),
    subsection("Last events", streamNotes.tail, wholeTail, streamTail),
    subsection("Transactions", streamNotes.transactions, streamTransactions),
  ],
});

async function showStream(scope, stream, isWanted) {
  const parts = { scope, stream };
  const it = await ask("GET", "/v1/streams/{scope}/{stream}", { parts });
  const wanted = fromEpoch.value === "" ? it.epoch + 1 - EPOCHS : Number(fromEpoch.value);
  const first = Math.max(0, Math.min(wanted, it.epoch));
  const tailQuery = { limit: 5, segment: tailSegment ?? "" };
  const [page, open, tail, transactions] = await Promise.all([
    ask("GET", "/v1/streams/{scope}/{stream}/segments", { parts, query: { after: first * 2 ** 32 - 1, limit: 200 } }),
    ask("GET", "/v1/streams/{scope}/{stream}/segments", { parts, query: { open: true, limit: 100 } }),
    ask("GET", "/v1/streams/{scope}/{stream}/tail", { parts, query: tailQuery }),
    ask("GET", "/v1/streams/{scope}/{stream}/transactions", { parts, query: { limit: 20 } }),
  ]);
  if (!isWanted()) return;
  refill(streamFacts, it, () => [pairs(streamRows(it))]);
  const known = new Map([...page.segments, ...open.segments].map((each) => [each.id, each]));
  const segments = Array.from(known.values()).sort((one, other) => one.id - other.id);
  showSegments(segments, first, page.epoch, page.next !== null || open.next !== null);
  showTail(tail);
  showTransactions(transactions);
}

function scalingText(scaling) {
  if (scaling.kind === "fixed") return `fixed, ${many(scaling.min_segments, "segment")}`;
  const unit = { kbytes_per_s: "kB/s", events_per_s: "events/s" }[scaling.kind];
  const rate = `${number(scaling.target_rate)} ${unit} for each segment`;
  return `${rate}, into ${scaling.factor}, at least ${scaling.min_segments}`;
}

function retentionText(retention) {
  if (retention === null) return "unlimited";
  const most = retention.maximum ? `, at most ${number(retention.maximum)}` : "";
  return `${number(retention.limit)} ${retention.kind === "time" ? "ms" : "bytes"}${most}`;
}

function streamRows(it) {
  return [
    ["Created", new Date(it.created_ms).toLocaleString("en-GB")],
    ["State", it.sealed ? "sealed" : it.scaling_now ? "being scaled" : "open"],
    ["Scaling", scalingText(it.scaling)],
    ["Retention", retentionText(it.retention)],
    it.tags.length > 0 && ["Tags", plain(it.tags.join(", "))],
    it.subscribers.length > 0 && ["Subscribers", plain(it.subscribers.join(", "))],
    it.head !== null && ["Begins at", element("code", null, short(it.head))],
  ];
}

// --- segments -----------------------------------------------------------------------------------------------------

function showSegments(segments, first, epoch, isCut) {
  put(streamNotes.segments, segments.length === 0 ? "There are none."
    : `Epochs ${number(first)} to ${number(epoch)}${isCut ? "; the first segments of them are shown" : ""}.`);
  const drawn = segments.map(({ id, epoch: from, until_epoch: until, low, high, status }) =>
    [id, from, until, low, high, status]);
  refill(streamPicture, [first, epoch, drawn], () => segments.length ? [picture(segments, first, epoch)] : []);
  fill(streamSegments, [
    ["Segment", (each) => `${each.number}.#epoch.${each.epoch}`],
    ["Epochs", epochsText, "n"],
    ["Keys", (each) => `${each.low.toFixed(4)} to ${each.high.toFixed(4)}`, "n"],
    ["State", (each) => each.status],
    ["Length, bytes", (each) => number(each.length), "n"],
    ["Starts at byte", (each) => number(each.start_offset), "n x"],
    ["Predecessors", (each) => each.predecessors.map(segmentText).join(", "), "w x"],
    ["Successors", (each) => each.successors.map(segmentText).join(", "), "w x"],
    ["Store", (each) => each.store ?? "", "x"],
  ], segments, (each) => each.id, { act: (each) => tailOf(each.id) });
}

const segmentText = (id) => `${id % 2 ** 32}.#epoch.${Math.floor(id / 2 ** 32)}`;

function epochsText({ epoch, until_epoch: until }) {
  if (until === null) return `from ${epoch}`;
  return until === epoch + 1 ? `${epoch}` : `${epoch} to ${until - 1}`;
}

function drawing(name, attributes, ...content) {
  const made = document.createElementNS(byId("drawing").namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...content);
  return made;
}

/** Draws key ranges, upwards, over epochs, to the right. The same is in the table below. */
function picture(segments, first, epoch) {
  const epochs = epoch + 1 - first, across = Math.max(14, Math.min(90, 600 / epochs)), height = 150, left = 26;
  const width = left + epochs * across + 4;
  const x = (each) => left + (Math.max(first, each) - first) * across, y = (key) => 4 + (1 - key) * height;
  const boxes = segments.filter((each) => each.until_epoch === null || each.until_epoch > first).map((each) => {
    const from = x(each.epoch), to = x(each.until_epoch ?? epoch + 1), tall = (each.high - each.low) * height;
    const hasRoom = tall >= 12 && to - from >= 14;
    const text = hasRoom ? [drawing("text", { x: from + 4, y: y(each.high) + 11 }, String(each.number))] : [];
    const place = { x: from + 0.5, y: y(each.high) + 0.5, width: to - from - 1, height: Math.max(0.5, tall - 1) };
    const said = `${segmentText(each.id)}, keys ${each.low} to ${each.high}, ${each.status}`;
    const box = drawing("rect", { ...place, class: each.status }, drawing("title", {}, said));
    return [box, ...text];
  });
  const every = Math.ceil(epochs / (width / 34));
  const axis = Array.from({ length: epochs }, (_, at) => at).filter((at) => at % every === 0)
    .map((at) => drawing("text", { x: x(first + at) + 3, y: height + 18 }, String(first + at)));
  const keys = [[1, 12], [0, 0]].map(([key, down]) => drawing("text", { x: 0, y: y(key) + down }, key.toFixed(1)));
  const label = `Key ranges of ${many(segments.length, "segment")} over epochs ${first} to ${epoch}`;
  return drawing("svg", {
    viewBox: `0 0 ${width} ${height + 22}`,
    width,
    role: "img",
    "aria-label": `${label}; the table has the same.`,
  }, ...boxes.flat(), ...axis, ...keys);
}

// --- events and transactions --------------------------------------------------------------------------------------

function showTail(tail) {
  const events = tail.segments.flatMap((one) => one.events.map((each) => ({ ...each, segment: one.id })));
  const why = tail.segments.filter((each) => each.why).map((each) => `${segmentText(each.id)}: ${each.why}`);
  const isCut = tail.segment_count > tail.segments.length;
  const cut = isCut ? `The first ${tail.segments.length} of ${number(tail.segment_count)} segments. ` : "";
  const whose = tailSegment === null ? "each segment" : `segment ${segmentText(tailSegment)}`;
  put(streamNotes.tail, events.length ? `${cut}The last 5 of ${whose}; press a segment above for its own.`
    : plain(why.join("; ")) || "There are none.");
  wholeTail.hidden = tailSegment === null;
  fill(streamTail, [
    ["Segment", (each) => segmentText(each.segment)],
    ["Offset", (each) => number(each.offset), "n"],
    ["Bytes", (each) => number(each.size), "n x"],
    ["Form", (each) => each.kind === "event" ? each.form : `${each.kind}, ${each.form}`, "x"],
    ["Content", (each) => oneLine(each.text), "w"],
  ], events, (each) => `${each.segment} ${each.offset}`);
}

function showTransactions(page) {
  put(streamNotes.transactions, page.transactions.length === 0 ? "There are none." : page.next === null ? ""
    : `The first ${page.transactions.length} are shown.`);
  streamTransactions.hidden = page.transactions.length === 0;
  fill(streamTransactions, [
    ["Transaction", (each) => each.id],
    ["Status", (each) => each.status],
    ["Age", (each) => span(each.age_ms), "n"],
    ["Lease left", (each) => span(each.lease_left_ms), "n"],
    ["Bytes", (each) => each.bytes === null ? "unknown" : number(each.bytes), "n"],
    ["Segments", (each) => number(each.segment_count), "n x"],
    ["Epoch", (each) => number(each.epoch), "n x"],
  ], page.transactions, (each) => each.id);
}

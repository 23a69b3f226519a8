// The panel of streams: policies, segments by epoch with their key ranges, the last events, transactions.

const EPOCHS = 12;  // the last ones are shown, unless another beginning is given
const streamPicture = element("div"), streamSegments = grid("Segments by epoch");
const streamTail = grid("The last events"), streamTransactions = grid("Transactions that have not ended");
const [segmentsNote, tailNote, transactionsNote] = Array.from({ length: 3 }, () => element("p", { className: "note" }));
const fromEpoch = element("input", { name: "epoch", type: "number", min: "0", placeholder: "last" });
const internalStreams = element("input", { type: "checkbox", name: "internal" });
const wholeTail = button("All segments", () => tailOf(null));
let tailSegment = null;

function tailOf(segment) {
  tailSegment = segment;
  lookSoon(0);
}
const epochForm = element("form", null, element("label", null, "From epoch", fromEpoch));
onSubmit(epochForm);
fromEpoch.addEventListener("change", () => lookSoon(0));

addContentsPanel({
  id: "streams",
  title: "Streams",
  one: "Stream",
  controls: [element("label", { className: "row" }, internalStreams, " Internal streams")],
  query: () => ({ internal: internalStreams.checked }),
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
  body: [
    subsection("Segments by epoch", epochForm, streamPicture, segmentsNote, streamSegments),
    subsection("Last events", tailNote, wholeTail, streamTail),
    subsection("Transactions", transactionsNote, streamTransactions),
  ],
  factsOf: (it) => [
    ["Created", new Date(it.created_ms).toLocaleString("en-GB")],
    ["State", it.sealed ? "sealed" : it.scaling_now ? "being scaled" : "open"],
    ["Scaling", settingsText(it.scaling)],
    ["Retention", it.retention === null ? "unlimited" : settingsText(it.retention)],
    it.tags.length > 0 && ["Tags", plain(it.tags.join(", "))],
    it.subscribers.length > 0 && ["Subscribers", plain(it.subscribers.join(", "))],
    it.head !== null && ["Begins at", short(it.head)],
  ],
  async show(it, parts, isWanted) {
    const wanted = fromEpoch.value === "" ? it.epoch + 1 - EPOCHS : Number(fromEpoch.value);
    const first = Math.max(0, Math.min(wanted, it.epoch)), after = first * 2 ** 32 - 1;
    const [page, open, tail, transactions] = await Promise.all([
      ask("GET", "/v1/streams/{scope}/{stream}/segments", { parts, query: { after, limit: 200 } }),
      ask("GET", "/v1/streams/{scope}/{stream}/segments", { parts, query: { open: true, limit: 100 } }),
      ask("GET", "/v1/streams/{scope}/{stream}/tail", { parts, query: { limit: 5, segment: tailSegment ?? "" } }),
      ask("GET", "/v1/streams/{scope}/{stream}/transactions", { parts, query: { limit: 20 } }),
    ]);
    if (!isWanted()) return;
    const known = new Map([...page.segments, ...open.segments].map((each) => [each.id, each]));
    const segments = Array.from(known.values()).sort((one, other) => one.id - other.id);
    showSegments(segments, first, page.epoch, page.next !== null || open.next !== null);
    showTail(tail);
    showTransactions(transactions);
  },
});

function showSegments(segments, first, epoch, isCut) {
  put(segmentsNote, segments.length === 0 ? "There are none."
    : `Epochs ${number(first)} to ${number(epoch)}${isCut ? "; the first segments of them are shown" : ""}.`);
  refill(streamPicture, [first, epoch, segments], () => segments.length ? [picture(segments, first, epoch)] : []);
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

/** Draws key ranges, upwards, over epochs, to the right. The same is in the table below. */
function picture(segments, first, epoch) {
  const epochs = epoch + 1 - first, percent = (part) => `${100 * part}%`;
  const drawn = segments.filter(({ until_epoch: until }) => until === null || until > first);
  const boxes = drawn.map((each) => {
    const from = Math.max(each.epoch - first, 0) / epochs, until = ((each.until_epoch ?? epoch + 1) - first) / epochs;
    const title = `${segmentText(each.id)}, keys ${each.low} to ${each.high}, ${each.status}`;
    const box = element("span", { className: each.status, title }, String(each.number));
    const [left, top] = [percent(from), percent(1 - each.high)];
    Object.assign(box.style, { left, top, width: percent(until - from), height: percent(each.high - each.low) });
    return box;
  });
  const ariaLabel = `Key ranges, upwards, of ${many(segments.length, "segment")} over epochs ${first} to ${epoch}`;
  const root = element("div", { className: "picture", role: "img", ariaLabel }, ...boxes);
  root.style.width = `${epochs * 90}px`;
  return root;
}

function showTail(tail) {
  const events = tail.segments.flatMap((one) => one.events.map((each) => ({ ...each, segment: one.id })));
  const why = tail.segments.filter((each) => each.why).map((each) => `${segmentText(each.id)}: ${each.why}`);
  const isCut = tail.segment_count > tail.segments.length;
  const cut = isCut ? `The first ${tail.segments.length} of ${number(tail.segment_count)} segments. ` : "";
  const whose = tailSegment === null ? "each segment" : `segment ${segmentText(tailSegment)}`;
  put(tailNote, events.length ? `${cut}The last 5 of ${whose}; press a segment above for its own.`
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
  put(transactionsNote, page.transactions.length === 0 ? "There are none." : page.next === null ? ""
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

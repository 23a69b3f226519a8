// Everything about one record, in the drawer.

const MOST_SHOWN = 4096, MOST_PAYLOADS = 40, MOST_EVENTS = 500;
const BLOCK_DATA = 24;  // where the data of an append block starts

async function recordDetails({ trace }, at, open) {
  const kind = KINDS[trace.what[at] & KIND], bytes = await trace.dataOf(at), call = trace.callOf(at);
  const spans = kind === "frame" ? describe(bytes) : [];
  return [
    factsOf(trace, at),
    linksOf(trace, at, open),
    ...trace.verdictsOf(at).map((verdict) => verdictIn(trace, at, verdict, open)),
    (kind === "open" || kind === "close") && eventOf(bytes),
    call && pairsOf(call.facts),
    call && section("Message", element("pre", null, plainLines(call.message))),
    kind === "frame" && await eventsOf(trace, at),
    payloadsIn(spans, bytes, kind),
    kind === "frame" && section("Bytes", fieldsTable(spans, bytes)),
    await statesAfter(trace, at, open),
  ];
}

function factsOf(trace, at) {
  const lane = trace.lane[at], requests = requestsOf(trace, at);
  const clock = Number((trace.start + trace.since[at]) / 1000000n), isDate = Math.abs(clock) < 8.64e15;
  const utc = isDate ? `, ${new Date(clock).toISOString().replace("T", " ").replace("Z", " UTC")}` : "";
  const connection = [trace.connectionOf(lane), plain(trace.tables.lanes[lane][1])].filter(Boolean).join(" ");
  const names = trace.namesOf(at).slice(0, 20).map(([name]) => element("div", null, shown(name)));
  const { head, tail } = trace.tables, size = trace.size[at], oldest = requests.length > 1 ? "oldest " : "";
  return pairs([
    trace.what[at] & GIVEN_UP && ["Status", "given up: the client closed the connection while the read waited"],
    trace.mark[at] && ["Problem", element("strong", { className: "problem" }, MARKS[trace.mark[at]][0])],
    ["Time", `${duration(Number(trace.since[at]))} after the start${utc}`],
    requests.length && ["Latency", `${trace.latencyOf(at)} after its ${oldest}request`],
    ["Connection", `${connection}, ${trace.sideOf(at)}`],
    trace.what[at] & HAS_ID
      && ["Request id", `${trace.requestId[at]} (flow ${trace.ids[2 * at + 1]}, sequence ${trace.ids[2 * at]})`],
    trace.segments[at] && ["Segment", ...names],
    trace.writer[at] && ["Writer", trace.tables.writers[trace.writer[at]]],
    ["Size", many(size, "byte") + (size > head + tail ? `, of which ${head + tail} are on this page` : "")],
  ]);
}

function placeIn(trace, at) {
  const lane = trace.lane[at];
  return firstPlace(trace.laneStart[lane], trace.laneStart[lane + 1], (place) => trace.ofLane[place] >= at);
}

function requestsOf(trace, at) {
  if (trace.requestOf[at] < 0) return [];
  return Array.from(trace.ofLane.subarray(placeIn(trace, trace.requestOf[at]), placeIn(trace, at)))
    .filter((request) => trace.replyOf[request] === at);
}

function linksOf(trace, at, open) {
  const place = placeIn(trace, at), lane = trace.lane[at], { length } = requestsOf(trace, at);
  const links = {
    Reply: trace.replyOf[at],
    [length > 1 ? `Oldest of ${length} requests` : "Request"]: trace.requestOf[at],
    "Block end": trace.endOf[at],
    Block: trace.blockOf[at],
    "Before on this connection": place > trace.laneStart[lane] ? trace.ofLane[place - 1] : -1,
    "Next on this connection": place + 1 < trace.laneStart[lane + 1] ? trace.ofLane[place + 1] : -1,
  };
  return linksTo(trace, Object.entries(links).filter(([, other]) => other >= 0), open);
}

const linksTo = (trace, records, open) => element("div", { className: "links" }, ...records.map(([label, other]) =>
  link(`${label}: ${plain(trace.nameOf(other))} (${other + 1})`, () => open(other))));

/** A verdict that names a record: the rule, what was seen, and the other records that show it. */
function verdictIn(trace, at, { rule, text, expected, actual, records }, open) {
  const others = records.filter((other) => other !== at).map((other) => ["See", other]);
  return section(`‼ Broken rule: ${rule}`, element("p", null, shown(trace.tables.broken[rule].sentence)),
    pairs([["Verdict", shown(text)], expected !== null && ["Expected", shown(expected)],
      actual !== null && ["Actual", shown(actual)]]), linksTo(trace, others, open));
}

const valueText = (value) => shown(typeof value === "string" ? value : JSON.stringify(value));
const pairsOf = (object) => pairs(Object.entries(object).map(([name, value]) => [shown(name), valueText(value)]));

function eventOf(bytes) {
  const text = new TextDecoder().decode(bytes.all);  // another recorder's form is shown as it is
  return attempt(() => pairsOf(JSON.parse(text)), text && element("pre", null, shown(text)));
}

/** The events of an append: of a block, or of its end, which may hold all of them. */
async function eventsOf(trace, at) {
  const end = trace.endOf[at] >= 0 ? trace.endOf[at] : trace.typeName(at) === "APPEND_BLOCK_END" ? at : -1;
  if (end < 0) return null;
  const fields = Object.fromEntries(describe(await trace.dataOf(end)).map((span) => [span.field, span.value]));
  const { last_event_number: last, num_events: count } = fields;
  if (last === undefined || count === undefined) return null;
  const data = await appended(trace, end), events = framesIn(data).filter(([name]) => name === "EVENT");
  const first = last - BigInt(count) + 1n, here = `${events.length} of them start in the bytes that are on this page`;
  const rows = events.slice(0, MOST_EVENTS).map(([, start, size], index) =>
    [String(first + BigInt(index)), number(size), preview(data.subarray(start, start + Math.min(size, 80)), size)]);
  return section("Events",
    element("p", null, `${many(count, "event")}, numbers ${first} to ${last}.`),
    count !== events.length && remark(`${here}, or the data is not framed as events.`),
    rows.length > 0 && tableOf("Events", [["Number", "n"], ["Bytes", "n"], ["Data", "w"]], rows));
}

/** The data of an append: the whole events of its block, the event that its end completes, and the end's own data. */
async function appended(trace, end) {
  const bytes = await trace.dataOf(end), { data, size_of_whole_events: { value: whole } = { value: 0 } } =
    Object.fromEntries(describe(bytes).map((span) => [span.field, span]));
  const tail = data ? bytes.slice(data.offset, data.length) : new Uint8Array();
  if (trace.blockOf[end] < 0) return tail;
  const block = await trace.dataOf(trace.blockOf[end]);
  const inside = block.slice(BLOCK_DATA, block.size - BLOCK_DATA);
  const isCut = inside.length < block.size - BLOCK_DATA;
  if (isCut || whole < 0 || whole > inside.length - HEADER_BYTES) return inside.subarray(0, Math.max(whole, 0));
  const view = new DataView(inside.buffer, inside.byteOffset + whole), start = whole + HEADER_BYTES;
  if (SPEC.block_frames[view.getInt32(0)] !== "PARTIAL_EVENT") return inside.subarray(0, whole);
  return Uint8Array.from([...inside.subarray(0, whole), ...inside.subarray(start, start + view.getInt32(4)), ...tail]);
}

/** The frames that start in some bytes: the name of each, where its data starts, and its size. */
function framesIn(data) {
  const found = [], view = new DataView(data.buffer, data.byteOffset, data.length);
  for (let at = 0; at + HEADER_BYTES <= data.length;) {
    const name = SPEC.block_frames[view.getInt32(at)], size = view.getInt32(at + 4);
    if (!name || size < 0) break;
    found.push([name, at + HEADER_BYTES, size]);
    at += HEADER_BYTES + size;
  }
  return found[0]?.[2] || found[1]?.[2] ? found : [];  // mere zeros would be events without a length
}

/** The first bytes of some data as text or as hex; `size` is that of all of it. */
function preview(part, size) {
  const text = asText(part);
  if (text === null) return `${hex(part.subarray(0, 24)).join(" ")}${size > 24 ? " …" : ""}`;
  return shown(text) + (size > part.length ? "…" : "");
}

/** Bytes as text, if they are UTF-8 without control characters; null if not. The last character may be cut off. */
const asText = (bytes) => attempt(() => {
  const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes, { stream: true });
  return text && !/[^\P{Cc}\t\n\r]/u.test(text) ? text : null;
});

/** A text as indented JSON, if it is an object or a list; null if not. */
const asJson = (text) =>
  /^\s*[[{]/.test(text ?? "") ? attempt(() => JSON.stringify(JSON.parse(text), null, 2)) : null;

/**
 * The events in framed bytes, without padding, and the bytes after them: where each starts, how many of its bytes are
 * there, and its size. Bytes that are not framed are one part. total: how many bytes the record has.
 */
function partsIn(data, total = data.length) {
  const frames = framesIn(data), [, last = 0, size = 0] = frames.at(-1) ?? [], rest = total - last - size;
  const parts = frames.filter(([name]) => name !== "PADDING")
    .map(([, start, size]) => [start, Math.min(size, total - start), size]);
  return rest > 0 ? [...parts, [last + size, rest, rest]] : parts;
}

/** A field as the parts in it, if it has framed events. */
function unwrapped(span, bytes) {
  const parts = span.field === "data" ? partsIn(bytes.slice(span.offset, span.length), span.length) : [];
  if (parts.length < 2 && !parts[0]?.[0]) return [span];
  return parts.map(([start, length, whole], index) =>
    ({ offset: span.offset + start, length, whole, field: `data[${index}]` })).filter((part) => part.length);
}

function payloadsIn(spans, bytes, kind) {
  const fields = kind === "bytes" ? [{ offset: 0, length: bytes.size, field: "bytes" }]
    : spans.filter((span) => span.kind === "data" && span.length && !span.secret);
  const parts = fields.flatMap((span) => unwrapped(span, bytes)), more = parts.length - MOST_PAYLOADS;
  return parts.length > 0 && section("Payload",
    ...parts.slice(0, MOST_PAYLOADS).map((span) => payloadIn(span, bytes)),
    more > 0 && remark(`${more} more are not shown.`));
}

function payloadIn(span, bytes) {
  const part = bytes.slice(span.offset, span.length), limited = part.subarray(0, MOST_SHOWN);
  const isWhole = part.length === span.length, missing = span.length - part.length;
  const text = asText(part.length > MOST_SHOWN ? limited : part), json = isWhole ? asJson(text) : null;
  const absent = missing ? `, ${number(missing)} bytes are not on this page` : "";
  const note = absent + (part.length > MOST_SHOWN ? `, the first ${MOST_SHOWN} are shown` : "");
  const whole = span.whole > span.length ? `of ${number(span.whole)} ` : "";
  return payloadOf(`${shown(span.field)} ${number(span.length)} ${whole}bytes`, [
    json !== null && ["JSON", () => plainLines(json), absent],
    text !== null && ["Text", () => plainLines(text), note],
    ["Hex", () => hexDump(limited), note],
  ].filter(Boolean));
}

function fieldsTable(spans, bytes) {
  return bytesTable("Bytes", spans.filter((span) => span.length || span.note).map((span) => [span.offset, span.length,
    span.secret ? null : bytes.slice(span.offset, span.length), span.field, spanText(span, bytes)]));
}

function spanText(span, bytes) {
  const { value, kind, secret, length, note } = span, isKnown = value !== null && value !== undefined;
  let text = "";
  if (kind === "data") {
    text = `${many(length, "byte")} ${preview(bytes.slice(span.offset, Math.min(length, 80)), length)}`;
  } else if (secret && value !== null) text = `<${String(value ?? "").length} characters>`;
  else if (isKnown) text = kind === "text" || Array.isArray(value) ? JSON.stringify(value) : String(value);
  return shown(text && note ? `${text} (${note})` : text || note);
}

/** The state, after a record, of what it is about; and a field to look at anything else. */
async function statesAfter(trace, at, open) {
  const entities = await trace.states(), names = new Set(trace.namesOf(at).map(([name]) => name));
  const writer = trace.tables.writers[trace.writer[at]];
  const transactions = Array.from(names, (name) => /#transaction\.([0-9a-f]{32})/i.exec(name)?.[1].toLowerCase());
  const isOurs = ([kind, name, of]) => kind === "segment" ? names.has(name)
    : kind === "writer" ? name === writer && (!names.size || names.has(of))
      : transactions.includes(name.replaceAll("-", ""));
  const about = ([kind, name, of, facts]) => {
    const lines = Object.entries(facts).map(([fact, [records, values]]) => {
      let since = 0, last = 0, value = "", changes = 0;  // numbers are differences to the number before
      for (; changes < records.length && since + records[changes] <= at; changes++) {
        since += records[changes];
        value = typeof values[changes] === "number" ? last += values[changes] : values[changes];
      }
      if (!changes) return null;
      const opener = link(`since record ${since + 1}`, () => open(since));
      return [fact, `${shown(value)} `, opener, changes > 1 ? ` (${changes} changes)` : ""];
    }).filter(Boolean);
    const title = element("p", null, element("strong", null, kind), ` ${shown(name)}${of && ` of ${shown(of)}`}`);
    const known = lines.length ? pairs(lines) : remark("Nothing is known yet.");
    return element("section", { ariaLabel: kind }, title, known);
  };
  const area = element("div"), label = "State of another segment, writer or transaction";
  const others = element("select", { ariaLabel: label },
    element("option", { value: "" }, "Another segment, writer or transaction …"));
  others.addEventListener("focus", () => {  // making them takes longer than all else here
    others.append(...entities.map(([kind, name, of], value) =>
      element("option", { value }, shown(`${kind} ${name}${of && ` of ${of}`}`))));
  }, { once: true });
  others.addEventListener("change", () => {
    area.replaceChildren(...others.value ? [about(entities[Number(others.value)])] : []);
  });
  return section(`State after record ${at + 1}`, ...entities.filter(isOurs).slice(0, 12).map(about),
    entities.length > 0 && others, area,
    remark("From the replies in this trace alone."));
}

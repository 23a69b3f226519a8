// The drawer: everything about one record. All text from the trace becomes text nodes.

const MOST_SHOWN = 4096, MOST_PAYLOADS = 40, MOST_EVENTS = 500, LONGEST_TEXT = 400;
const BLOCK_DATA = 24; // where the data of an append block starts
const NONE = "-9223372036854775808";

/** Makes an element. `with_` sets properties; texts and elements become its content. */
function element(name, with_, ...content) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(with_ ?? {})) {
    if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...content.filter((each) => each !== null && each !== undefined));
  return made;
}

const shortened = (text) => text.length > LONGEST_TEXT ? `${text.slice(0, LONGEST_TEXT)}… (${text.length} characters)` : text;
const shown = (value) => shortened(visible(value));
const link = (text, act) => {
  const made = element("button", { type: "button", className: "link" }, text);
  made.addEventListener("click", act);
  return made;
};
const pairs = (rows) => element("dl", null, ...rows.filter(Boolean).map(([name, ...value]) => element("div", null, element("dt", null, name), element("dd", null, ...value))));

function table(heading, rows, className = "") {
  const head = element("thead", null, element("tr", null, ...heading.map((each) => element("th", { scope: "col" }, each))));
  const body = element("tbody", null, ...rows.map((row) => element("tr", null, ...row.map((cell) => cell instanceof HTMLTableCellElement ? cell : element("td", { className: "w" }, cell ?? "")))));
  return element("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: heading.join(", ") }, element("table", { className }, head, body));
}

/** Shows a record of a view. `open(at)` shows another one. */
async function recordDetails(view, at, open) {
  const { trace } = view, kind = KINDS[trace.what[at] & KIND], bytes = await trace.dataOf(at);
  const spans = kind === "frame" ? describe(bytes) : [];
  const mark = ["", "failure", "does not decode", "no reply before its connection ended"][trace.mark[at]];
  const parts = [facts(trace, at, mark), links(trace, at, open)];
  if (kind === "open" || kind === "close") parts.push(...event(bytes));
  if (kind === "call") parts.push(...callDetails(trace, at));
  if (kind === "frame") parts.push(...(await events(trace, at)));
  parts.push(...payloads(spans, bytes, kind));
  if (kind === "frame") parts.push(element("h3", null, "Bytes"), byteTable(spans, bytes));
  parts.push(...(await states(trace, at, open)));
  return parts;
}

function facts(trace, at, mark) {
  const label = trace.tables.lanes[trace.lane[at]][1], hasId = trace.what[at] & HAS_ID, asked = trace.requestOf[at];
  const time = duration(Number(trace.since[at])), clock = (trace.start + trace.since[at]) / 1000000n;
  const date = Number(clock), known = Math.abs(date) < 8.64e15;
  return pairs([
    mark && ["Problem", element("strong", { className: "problem" }, mark)],
    ["Time", `${time} after the start${known ? `, ${new Date(date).toISOString().replace("T", " ").replace("Z", " UTC")}` : ""}`],
    asked >= 0 && ["Latency", `${duration(Number(trace.since[at] - trace.since[asked]))} after its ${counted(trace, at) > 1 ? "oldest " : ""}request`],
    ["Connection", [trace.connectionOf(trace.lane[at]), visible(label)].filter(Boolean).join(" ") + `, ${trace.sideOf(at)}`],
    hasId && ["Request id", `${trace.requestId[at]} (flow ${trace.ids[2 * at + 1]}, sequence ${trace.ids[2 * at]})`],
    trace.segments[at] && ["Segment", ...trace.namesOf(at).slice(0, 20).map(([name]) => element("div", null, shown(name)))],
    trace.writer[at] && ["Writer", trace.tables.writers[trace.writer[at]]],
    ["Size", `${trace.size[at].toLocaleString("en")} bytes${trace.keptOf(at) < trace.size[at] ? `, of which ${trace.keptOf(at)} are on this page` : ""}`],
  ]);
}

/** How many requests a reply answers. */
function counted(trace, at) {
  const end = trace.laneStart[trace.lane[at] + 1];
  let count = 0;
  for (let place = placeIn(trace, trace.requestOf[at]); place < end && trace.ofLane[place] < at; place++) if (trace.replyOf[trace.ofLane[place]] === at) count++;
  return count;
}

/** The place of a record among those of its lane. */
function placeIn(trace, at) {
  let low = trace.laneStart[trace.lane[at]], high = trace.laneStart[trace.lane[at] + 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (trace.ofLane[middle] < at) low = middle + 1;
    else high = middle;
  }
  return low;
}

function links(trace, at, open) {
  const place = placeIn(trace, at), lane = trace.lane[at];
  const to = (label, other) => other >= 0 && link(`${label}: ${visible(trace.nameOf(other))} (${other + 1})`, () => open(other));
  const found = [
    to("Reply", trace.replyOf[at]),
    to(counted(trace, at) > 1 ? `Oldest of ${counted(trace, at)} requests` : "Request", trace.requestOf[at]),
    to("Block end", trace.endOf[at]),
    to("Block", trace.blockOf[at]),
    to("Before on this connection", place > trace.laneStart[lane] ? trace.ofLane[place - 1] : -1),
    to("Next on this connection", place + 1 < trace.laneStart[lane + 1] ? trace.ofLane[place + 1] : -1),
  ];
  return element("div", { className: "links" }, ...found.filter(Boolean));
}

function event(bytes) {
  const text = new TextDecoder().decode(bytes.kept);
  try {
    const found = JSON.parse(text);
    if (found && typeof found === "object") return [pairs(Object.entries(found).map(([name, value]) => [shown(name), shown(typeof value === "string" ? value : JSON.stringify(value))]))];
  } catch { /* another recorder's form: shown as it is */ }
  return text ? [element("pre", null, shown(text))] : [];
}

function callDetails(trace, at) {
  const call = trace.call[at] && trace.tables.calls[trace.call[at] - 1];
  if (!call) return [];
  const rows = [["Method", shown(call.rpc)], call.status && ["Outcome", shown(call.status)], call.details && ["Details", shown(call.details)], call.peer && ["Client", shown(call.peer)]];
  rows.push(...Object.entries(call.metadata).map(([name, value]) => [`Metadata ${shown(name)}`, shown(value)]));
  const message = call.message === null ? "The message does not decode." : visibleLines(JSON.stringify(call.message, null, 2));
  return [pairs(rows), element("h3", null, "Message"), element("pre", null, message)];
}

/** The events of an append: of a block, or of its end, which may hold all of them. */
async function events(trace, at) {
  const end = trace.endOf[at] >= 0 ? trace.endOf[at] : trace.typeName(at) === "APPEND_BLOCK_END" ? at : -1;
  if (end < 0) return [];
  const bytes = await trace.dataOf(end), spans = describe(bytes), field = (name) => spans.find((each) => each.field === name);
  const last = field("last_event_number")?.value, count = field("num_events")?.value;
  if (last === undefined || count === undefined) return [];
  const data = joined(trace.blockOf[end] < 0 ? null : await trace.dataOf(trace.blockOf[end]), field("size_of_whole_events").value, bytes, field("data")), found = split(data);
  const first = last - BigInt(count) + 1n;
  const rows = found.slice(0, MOST_EVENTS).map(([start, size], index) => [String(first + BigInt(index)), size.toLocaleString("en"), preview(data.subarray(start, start + Math.min(size, 80)), size)]);
  const parts = [element("h3", null, "Events"), element("p", null, `${many(count, "event")}, numbers ${first} to ${last}.`)];
  if (count !== found.length) parts.push(element("p", { className: "facts" }, `${found.length} of them start in the bytes that are on this page, or the data is not framed as events.`));
  if (rows.length) parts.push(table(["Number", "Bytes", "Data"], rows));
  return parts;
}

/** The data of an append: the whole events of its block, the event that its end completes, and the end's own data. */
function joined(block, whole, end, data) {
  const tail = data ? end.slice(data.offset, data.length) : new Uint8Array();
  if (block === null) return tail;
  const inside = block.slice(BLOCK_DATA, block.size - BLOCK_DATA);
  if (inside.length < block.size - BLOCK_DATA || whole < 0 || whole > inside.length - HEADER_BYTES) return inside.subarray(0, Math.max(whole, 0));
  const view = new DataView(inside.buffer, inside.byteOffset + whole), part = inside.subarray(whole + HEADER_BYTES, whole + HEADER_BYTES + view.getInt32(4));
  if (SPEC.block_frames[view.getInt32(0)] !== "PARTIAL_EVENT") return inside.subarray(0, whole);
  const all = new Uint8Array(whole + part.length + tail.length);
  all.set(inside.subarray(0, whole));
  all.set(part, whole);
  all.set(tail, whole + part.length);
  return all;
}

/** The events that start in some bytes: where the data of each starts, and its size. */
function split(data) {
  const found = [], view = new DataView(data.buffer, data.byteOffset, data.length);
  for (let at = 0; at + HEADER_BYTES <= data.length;) {
    const size = view.getInt32(at + 4);
    if (view.getInt32(at) !== 0 || size < 0) break;
    found.push([at + HEADER_BYTES, size]);
    at += HEADER_BYTES + size;
  }
  return found;
}

/** The first bytes of some data as text or as hex; `size` is that of all of it. */
function preview(part, size) {
  const text = asText(part);
  return text === null ? `${hex(part.subarray(0, 24)).join(" ")}${size > 24 ? " …" : ""}` : shown(text) + (size > part.length ? "…" : "");
}

// --- payloads -----------------------------------------------------------------------------------------------------

/** Bytes as text, if they are UTF-8 without control characters; null if not. */
function asText(bytes) {
  for (let cut = 0; cut < 4; cut++) { // the last character may be cut off
    try {
      const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes.subarray(0, bytes.length - cut));
      return text && !/[^\P{Cc}\t\n\r]/u.test(text) ? text : null;
    } catch { /* not whole, or not UTF-8 */ }
  }
  return null;
}

/** Bytes as indented JSON, if they are an object or a list; null if not. */
function asJson(text) {
  if (!/^\s*[[{]/.test(text ?? "")) return null;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return null;
  }
}

function hexDump(bytes) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const row = bytes.subarray(at, at + 16), text = Array.from(row, (each) => each >= 0x20 && each < 0x7f ? String.fromCharCode(each) : ".").join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${hex(row).join(" ").padEnd(47)}  ${text}`);
  }
  return lines.join("\n");
}

const visibleLines = (text) => text.split("\n").map(visible).join("\n");

/** The events in the data of an append or a read, and what follows them; another field as it is. */
function unwrapped(span, bytes) {
  const found = span.field === "data" ? split(bytes.slice(span.offset, span.length)) : [];
  if (!found.length || !found[0][1]) return [span]; // zeros would be events without a length
  const [last, size] = found.at(-1), rest = span.length - last - size;
  const parts = found.map(([start, size]) => ({ offset: span.offset + start, length: Math.min(size, span.length - start), whole: size }));
  if (rest > 0) parts.push({ offset: span.offset + last + size, length: rest });
  return parts.map((each, index) => ({ ...each, field: `data[${index}]` })).filter((each) => each.length);
}

function payloads(spans, bytes, kind) {
  const fields = kind === "bytes" ? [{ offset: 0, length: bytes.size, field: "" }] : spans.filter((each) => each.kind === "data" && each.length && !each.secret);
  const found = fields.flatMap((each) => unwrapped(each, bytes));
  if (!found.length) return [];
  const parts = [element("h3", null, "Payload")];
  for (const each of found.slice(0, MOST_PAYLOADS)) parts.push(payload(each, bytes));
  if (found.length > MOST_PAYLOADS) parts.push(element("p", { className: "facts" }, `${found.length - MOST_PAYLOADS} more are not shown.`));
  return parts;
}

function payload(span, bytes) {
  const part = bytes.slice(span.offset, span.length), limited = part.subarray(0, MOST_SHOWN);
  const text = asText(part.length > MOST_SHOWN ? limited : part), json = part.length === span.length ? asJson(text) : null;
  const forms = [json !== null && ["JSON", () => visibleLines(json)], text !== null && ["Text", () => visibleLines(text)], ["Hex", () => hexDump(limited)]].filter(Boolean);
  const area = element("pre", { tabIndex: 0 }), buttons = forms.map(([name, make]) => {
    const made = element("button", { type: "button", ariaPressed: "false" }, name);
    made.addEventListener("click", () => choose(made, name, make));
    return made;
  });
  const choose = (button, name, make) => {
    for (const each of buttons) each.ariaPressed = String(each === button);
    area.className = name === "Hex" ? "hex" : "";
    area.textContent = make();
  };
  choose(buttons[0], ...forms[0]);
  const missing = span.length - part.length, notes = [];
  if (missing) notes.push(`${missing.toLocaleString("en")} bytes are not on this page.`);
  if (part.length > MOST_SHOWN && json === null) notes.push(`The first ${MOST_SHOWN} are shown.`);
  return element("div", null, element("span", { className: "group" }, element("code", null, shown(span.field || "bytes")), ` ${span.length.toLocaleString("en")} ${span.whole > span.length ? `of ${span.whole.toLocaleString("en")} ` : ""}bytes `, ...buttons), area, notes.length ? element("p", { className: "facts" }, notes.join(" ")) : null);
}

function byteTable(spans, bytes) {
  const rows = spans.filter((each) => each.length || each.note).map((each) => {
    const part = each.secret ? null : bytes.slice(each.offset, Math.min(each.length, 16));
    const raw = part === null ? "··" : hex(part).join(" ") + (each.length > part.length ? " …" : "");
    return [each.offset.toString(16).padStart(6, "0"), raw, each.field, said(each, bytes)];
  });
  return table(["Offset", "Bytes", "Field", "Value"], rows, "bytes");
}

function said(span, bytes) {
  let text = "";
  if (span.kind === "data") text = `${span.length.toLocaleString("en")} bytes ${preview(bytes.slice(span.offset, Math.min(span.length, 80)), span.length)}`;
  else if (span.secret && span.value !== null) text = `<${String(span.value ?? "").length} characters>`;
  else if (span.kind === "text" && span.value !== undefined) text = JSON.stringify(span.value);
  else if (span.value !== null && span.value !== undefined) text = Array.isArray(span.value) ? JSON.stringify(span.value) : String(span.value);
  return shown(text && span.note ? `${text} (${span.note})` : text || span.note);
}

// --- states -------------------------------------------------------------------------------------------------------

/** The state, after a record, of what it is about; and a field to look at anything else. */
async function states(trace, at, open) {
  const { entities } = trace.tables.states, names = new Set(trace.namesOf(at).map(([name]) => name));
  const writer = trace.tables.writers[trace.writer[at]];
  const transactions = new Set(Array.from(names, (name) => /#transaction\.([0-9a-f]{32})/i.exec(name)?.[1].toLowerCase()).filter(Boolean));
  const parts = [element("h3", null, `State after record ${at + 1}`)];
  const area = element("div", null), about = async (entity) => {
    const [kind, name, of] = entities[entity], rows = await trace.stateOf(entity, at);
    const lines = rows.map(([fact, value, record, changes]) => [fact, `${value === NONE ? "none" : shown(value)} `, link(`since record ${record + 1}`, () => open(record)), changes > 1 ? ` (${changes} changes)` : ""]);
    return element("section", { ariaLabel: kind }, element("p", null, element("strong", null, kind), ` ${shown(name)}${of ? ` of ${shown(of)}` : ""}`), lines.length ? pairs(lines) : element("p", { className: "facts" }, "Nothing is known yet."));
  };
  const named = await trace.entitiesNamed(), numbers = (key) => named.get(key) ?? [];
  const ours = [
    ...Array.from(names, (name) => numbers(`segment ${name}`)), ...Array.from(transactions, (id) => numbers(`transaction ${id}`)),
    numbers(`writer ${writer}`).filter((number) => !names.size || names.has(entities[number][2])),
  ].flat().sort((one, other) => one - other);
  for (const number of ours.slice(0, 12)) parts.push(await about(number));
  const others = element("select", { ariaLabel: "State of another segment, writer or transaction" }, element("option", { value: "" }, "Another segment, writer or transaction …"));
  others.addEventListener("focus", () => { // making them takes longer than all else here
    for (const [number, [kind, name, of]] of entities.slice(0, 2000).entries()) others.append(element("option", { value: number }, shown(`${kind} ${name}${of ? ` of ${of}` : ""}`)));
  }, { once: true });
  others.addEventListener("change", async () => area.replaceChildren(...(others.value ? [await about(Number(others.value))] : [])));
  if (entities.length) parts.push(others, area);
  if (entities.length > 2000) parts.push(element("p", { className: "facts" }, `The first 2,000 of ${entities.length.toLocaleString("en")} can be chosen here; any other appears with its own records.`));
  parts.push(element("p", { className: "facts" }, "From the replies in this trace alone."));
  return parts;
}

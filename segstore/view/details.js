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

const shortened = (text) =>
  text.length > LONGEST_TEXT ? `${text.slice(0, LONGEST_TEXT)}… (${text.length} characters)` : text;
const shown = (value) => shortened(visible(value));
const link = (text, act) => {
  const made = element("button", { type: "button", className: "link" }, text);
  made.addEventListener("click", act);
  return made;
};
const remark = (text) => element("p", { className: "facts" }, text);

function pairs(rows) {
  const lines = rows.filter(Boolean).map(([name, ...value]) =>
    element("div", null, element("dt", null, name), element("dd", null, ...value)));
  return element("dl", null, ...lines);
}

function table(heading, rows, className = "") {
  const heads = heading.map((each) => element("th", { scope: "col" }, each));
  const head = element("thead", null, element("tr", null, ...heads));
  const cellOf = (cell) => cell instanceof HTMLTableCellElement ? cell : element("td", { className: "w" }, cell ?? "");
  const body = element("tbody", null, ...rows.map((row) => element("tr", null, ...row.map(cellOf))));
  const made = element("table", { className }, head, body);
  return element("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: heading.join(", ") }, made);
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
  const utc = known ? `, ${new Date(date).toISOString().replace("T", " ").replace("Z", " UTC")}` : "";
  const connection = [trace.connectionOf(trace.lane[at]), visible(label)].filter(Boolean).join(" ");
  const names = trace.namesOf(at).slice(0, 20).map(([name]) => element("div", null, shown(name)));
  const kept = trace.keptOf(at), limit = kept < trace.size[at] ? `, of which ${kept} are on this page` : "";
  return pairs([
    trace.what[at] & GIVEN_UP && ["Status", "given up: the client closed the connection while the read waited"],
    mark && ["Problem", element("strong", { className: "problem" }, mark)],
    ["Time", `${time} after the start${utc}`],
    asked >= 0 && ["Latency", latency(trace, at)],
    ["Connection", `${connection}, ${trace.sideOf(at)}`],
    hasId && ["Request id", `${trace.requestId[at]} (flow ${trace.ids[2 * at + 1]}, sequence ${trace.ids[2 * at]})`],
    trace.segments[at] && ["Segment", ...names],
    trace.writer[at] && ["Writer", trace.tables.writers[trace.writer[at]]],
    ["Size", `${trace.size[at].toLocaleString("en")} bytes${limit}`],
  ]);
}

/** How long after its request a reply came, as text. */
function latency(trace, at) {
  const waited = duration(Number(trace.since[at] - trace.since[trace.requestOf[at]]));
  return `${waited} after its ${counted(trace, at) > 1 ? "oldest " : ""}request`;
}

/** How many requests a reply answers. */
function counted(trace, at) {
  const end = trace.laneStart[trace.lane[at] + 1];
  let count = 0;
  for (let place = placeIn(trace, trace.requestOf[at]); place < end && trace.ofLane[place] < at; place++) {
    if (trace.replyOf[trace.ofLane[place]] === at) count++;
  }
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
  const to = (label, other) =>
    other >= 0 && link(`${label}: ${visible(trace.nameOf(other))} (${other + 1})`, () => open(other));
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
  const written = (value) => shown(typeof value === "string" ? value : JSON.stringify(value));
  try {
    const found = JSON.parse(text);
    if (found && typeof found === "object") {
      return [pairs(Object.entries(found).map(([name, value]) => [shown(name), written(value)]))];
    }
  } catch { /* another recorder's form: shown as it is */ }
  return text ? [element("pre", null, shown(text))] : [];
}

function callDetails(trace, at) {
  const call = trace.call[at] && trace.tables.calls[trace.call[at] - 1];
  if (!call) return [];
  const rows = [
    ["Method", shown(call.rpc)],
    call.status && ["Outcome", shown(call.status)],
    call.details && ["Details", shown(call.details)],
    call.peer && ["Client", shown(call.peer)],
  ];
  rows.push(...Object.entries(call.metadata).map(([name, value]) => [`Metadata ${shown(name)}`, shown(value)]));
  const message = call.message === null ? "The message does not decode."
    : visibleLines(JSON.stringify(call.message, null, 2));
  return [pairs(rows), element("h3", null, "Message"), element("pre", null, message)];
}

/** The events of an append: of a block, or of its end, which may hold all of them. */
async function events(trace, at) {
  const end = trace.endOf[at] >= 0 ? trace.endOf[at] : trace.typeName(at) === "APPEND_BLOCK_END" ? at : -1;
  if (end < 0) return [];
  const bytes = await trace.dataOf(end), spans = describe(bytes);
  const field = (name) => spans.find((each) => each.field === name);
  const last = field("last_event_number")?.value, count = field("num_events")?.value;
  if (last === undefined || count === undefined) return [];
  const block = trace.blockOf[end] < 0 ? null : await trace.dataOf(trace.blockOf[end]);
  const data = joined(block, field("size_of_whole_events").value, bytes, field("data")), found = split(data);
  const first = last - BigInt(count) + 1n;
  const rows = found.slice(0, MOST_EVENTS).map(([start, size], index) => {
    const beginning = data.subarray(start, start + Math.min(size, 80));
    return [String(first + BigInt(index)), size.toLocaleString("en"), preview(beginning, size)];
  });
  const parts = [
    element("h3", null, "Events"),
    element("p", null, `${many(count, "event")}, numbers ${first} to ${last}.`),
  ];
  if (count !== found.length) {
    const here = `${found.length} of them start in the bytes that are on this page`;
    parts.push(remark(`${here}, or the data is not framed as events.`));
  }
  if (rows.length) parts.push(table(["Number", "Bytes", "Data"], rows));
  return parts;
}

/** The data of an append: the whole events of its block, the event that its end completes, and the end's own data. */
function joined(block, whole, end, data) {
  const tail = data ? end.slice(data.offset, data.length) : new Uint8Array();
  if (block === null) return tail;
  const inside = block.slice(BLOCK_DATA, block.size - BLOCK_DATA);
  const isCut = inside.length < block.size - BLOCK_DATA;
  if (isCut || whole < 0 || whole > inside.length - HEADER_BYTES) return inside.subarray(0, Math.max(whole, 0));
  const view = new DataView(inside.buffer, inside.byteOffset + whole), start = whole + HEADER_BYTES;
  const part = inside.subarray(start, start + view.getInt32(4));
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
  if (text === null) return `${hex(part.subarray(0, 24)).join(" ")}${size > 24 ? " …" : ""}`;
  return shown(text) + (size > part.length ? "…" : "");
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
    const row = bytes.subarray(at, at + 16);
    const text = Array.from(row, (each) => each >= 0x20 && each < 0x7f ? String.fromCharCode(each) : ".").join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${hex(row).join(" ").padEnd(47)}  ${text}`);
  }
  return lines.join("\n");
}

const visibleLines = (text) => text.split("\n").map(visible).join("\n");

/** The events in the data of an append or a read, and what follows them; another field as it is. */
function unwrapped(span, bytes) {
  const found = span.field === "data" ? split(bytes.slice(span.offset, span.length)) : [];
  if (!found[0]?.[1] && !found[1]?.[1]) return [span]; // zeros would be events without a length
  const [last, size] = found.at(-1), rest = span.length - last - size;
  const parts = found.map(([start, size]) =>
    ({ offset: span.offset + start, length: Math.min(size, span.length - start), whole: size }));
  if (rest > 0) parts.push({ offset: span.offset + last + size, length: rest });
  return parts.map((each, index) => ({ ...each, field: `data[${index}]` })).filter((each) => each.length);
}

function payloads(spans, bytes, kind) {
  const isPayload = (each) => each.kind === "data" && each.length && !each.secret;
  const fields = kind === "bytes" ? [{ offset: 0, length: bytes.size, field: "" }] : spans.filter(isPayload);
  const found = fields.flatMap((each) => unwrapped(each, bytes));
  if (!found.length) return [];
  const parts = [element("h3", null, "Payload")];
  for (const each of found.slice(0, MOST_PAYLOADS)) parts.push(payload(each, bytes));
  if (found.length > MOST_PAYLOADS) parts.push(remark(`${found.length - MOST_PAYLOADS} more are not shown.`));
  return parts;
}

function payload(span, bytes) {
  const part = bytes.slice(span.offset, span.length), limited = part.subarray(0, MOST_SHOWN);
  const text = asText(part.length > MOST_SHOWN ? limited : part);
  const json = part.length === span.length ? asJson(text) : null;
  const forms = [
    json !== null && ["JSON", () => visibleLines(json)],
    text !== null && ["Text", () => visibleLines(text)],
    ["Hex", () => hexDump(limited)],
  ].filter(Boolean);
  const area = element("pre", { tabIndex: 0 });
  const buttons = forms.map(([name, make]) => {
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
  const field = element("code", null, shown(span.field || "bytes"));
  const whole = span.whole > span.length ? `of ${span.whole.toLocaleString("en")} ` : "";
  const size = ` ${span.length.toLocaleString("en")} ${whole}bytes `;
  return element("div", null, element("span", { className: "group" }, field, size, ...buttons), area,
    notes.length ? remark(notes.join(" ")) : null);
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
  const { value } = span;
  let text = "";
  if (span.kind === "data") {
    const beginning = bytes.slice(span.offset, Math.min(span.length, 80));
    text = `${span.length.toLocaleString("en")} bytes ${preview(beginning, span.length)}`;
  } else if (span.secret && value !== null) text = `<${String(value ?? "").length} characters>`;
  else if (span.kind === "text" && value !== undefined) text = JSON.stringify(value);
  else if (value !== null && value !== undefined) text = Array.isArray(value) ? JSON.stringify(value) : String(value);
  return shown(text && span.note ? `${text} (${span.note})` : text || span.note);
}

// --- states -------------------------------------------------------------------------------------------------------

/** The state, after a record, of what it is about; and a field to look at anything else. */
async function states(trace, at, open) {
  const { entities } = trace.tables.states, names = new Set(trace.namesOf(at).map(([name]) => name));
  const writer = trace.tables.writers[trace.writer[at]];
  const transactionIn = (name) => /#transaction\.([0-9a-f]{32})/i.exec(name)?.[1].toLowerCase();
  const transactions = new Set(Array.from(names, transactionIn).filter(Boolean));
  const parts = [element("h3", null, `State after record ${at + 1}`)];
  const about = async (entity) => {
    const [kind, name, of] = entities[entity], rows = await trace.stateOf(entity, at);
    const lines = rows.map(([fact, value, record, changes]) => {
      const since = link(`since record ${record + 1}`, () => open(record));
      return [fact, `${value === NONE ? "none" : shown(value)} `, since, changes > 1 ? ` (${changes} changes)` : ""];
    });
    const title = element("p", null, element("strong", null, kind), ` ${shown(name)}${of ? ` of ${shown(of)}` : ""}`);
    const known = lines.length ? pairs(lines) : remark("Nothing is known yet.");
    return element("section", { ariaLabel: kind }, title, known);
  };
  const named = await trace.entitiesNamed(), numbers = (key) => named.get(key) ?? [];
  const ours = [
    ...Array.from(names, (name) => numbers(`segment ${name}`)),
    ...Array.from(transactions, (id) => numbers(`transaction ${id}`)),
    numbers(`writer ${writer}`).filter((number) => !names.size || names.has(entities[number][2])),
  ].flat().sort((one, other) => one - other);
  for (const number of ours.slice(0, 12)) parts.push(await about(number));
  const others = element("select", { ariaLabel: "State of another segment, writer or transaction" },
    element("option", { value: "" }, "Another segment, writer or transaction …"));
  others.addEventListener("focus", () => { // making them takes longer than all else here
    for (const [number, [kind, name, of]] of entities.slice(0, 2000).entries()) {
      const text = shown(`${kind} ${name}${of ? ` of ${of}` : ""}`);
      others.append(element("option", { value: number }, text));
    }
  }, { once: true });
  const area = element("div", null);
  others.addEventListener("change", async () => {
    const chosen = others.value ? [await about(Number(others.value))] : [];
    area.replaceChildren(...chosen);
  });
  if (entities.length) parts.push(others, area);
  if (entities.length > 2000) {
    const first = `The first 2,000 of ${entities.length.toLocaleString("en")} can be chosen here`;
    parts.push(remark(`${first}; any other appears with its own records.`));
  }
  parts.push(remark("From the replies in this trace alone."));
  return parts;
}

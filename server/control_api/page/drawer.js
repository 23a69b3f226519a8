// The drawer: one request in detail. It is a modal dialog, which keeps the focus inside; it returns to the row.

const drawer = element("dialog", { id: "drawer", "aria-labelledby": "drawer-title" });
const drawerTitle = element("h2", { id: "drawer-title", tabIndex: -1 });
const drawerSaid = element("p", { id: "drawer-said", role: "status" });
const drawerParts = element("div");
const newer = button("Newer", () => openNext(-1)), older = button("Older", () => openNext(1));
drawer.append(
  element("div", { className: "top" }, drawerTitle,
    element("div", { className: "buttons" }, newer, older, button("Close", closeRequest))),
  drawerSaid, drawerParts);
document.body.append(drawer);
let opened = null;  // its number

/** Shows a request. The list of requests stands still meanwhile. */
async function openRequest(asked) {
  const wanted = opened = Number(asked);
  put(drawerSaid, "");
  drawerSaid.classList.remove("problem");
  if (!drawer.open) {
    put(drawerTitle, `Request ${wanted}`);
    drawerParts.replaceChildren();
    drawer.showModal();
    drawerTitle.focus();
  }
  setAddress(wanted, new URLSearchParams(location.search).get("request") === null);
  await lookAtRequest(wanted);
  drawer.scrollTop = 0;
}

function closeRequest() {
  if (drawer.open) drawer.close();
}
drawer.addEventListener("close", () => {
  if (drawer.open) return;  // another request was opened meanwhile
  opened = null;
  setAddress(null, false);
  if (document.activeElement === document.body || requestsTable.contains(document.activeElement)) tabStop?.focus();
  lookSoon(0);
});
drawer.addEventListener("click", (event) => {
  if (event.target === drawer) closeRequest();  // beside its content: on the backdrop
});
/** The numbers of the listed requests, newest first. */
const listed = () => Array.from(requestsTable.querySelectorAll("tbody tr"), (row) => row.shown.number);

/** Opens the request beside this one in the list. */
function openNext(by) {
  const numbers = listed(), at = numbers.indexOf(opened), next = numbers[at + by];
  if (at < 0 || next === undefined) return;
  oneTabStop(openers()[at + by]);
  openRequest(next);
}

/** Enables the buttons for the requests beside this one, if there are such. */
function showNext() {
  const numbers = listed(), at = numbers.indexOf(opened);
  newer.disabled = at < 1;
  older.disabled = at < 0 || at === numbers.length - 1;
}

/** Requests a request and shows it, if it is still the one that is open. */
async function lookAtRequest(wanted) {
  try {
    const it = await ask("GET", "/v1/requests/{number}", { parts: { number: wanted } });
    if (opened === wanted) showRequest(it);
  } catch (error) {
    if (!(error instanceof Refused || error instanceof Gone)) throw error;
    if (opened !== wanted) return;
    drawerParts.replaceChildren();
    put(drawerTitle, `Request ${wanted}`);
    notify(error.message, true);
  }
}

/** While the drawer shows a request that has no reply, it is requested again with each refresh. */
async function refreshDrawer() {
  if (drawer.open && opened !== null && drawer.dataset.waits) await lookAtRequest(opened);
}

function notify(text, isProblem = false) {
  drawerSaid.classList.toggle("problem", isProblem);
  put(drawerSaid, plain(text));
}

// --- its parts ----------------------------------------------------------------------------------------------------

const section = (title, ...content) => element("section", null, element("h3", null, title), ...content);

function showRequest(it) {
  showNext();
  drawer.dataset.waits = it.reply === null && it.stage !== "given up" ? "yes" : "";
  put(drawerTitle, `${plain(it.type)} ${it.number}`);
  const shown = JSON.stringify(it);
  if (drawerParts.dataset.shown === shown && drawerParts.childElementCount) return;
  drawerParts.dataset.shown = shown;
  drawerParts.replaceChildren(...[
    deedsOf(it), factsOf(it), section("Timeline", timelineOf(it)),
    it.payload.length > 0 && section("Payload", ...it.payload.map(payloadOf)),
    ...it.frames.filter((each) => each.fields.length || each.error).map(frameSection),
    section("On its connection", neighboursOf(it)),
  ].filter(Boolean));
  if (!drawer.contains(document.activeElement)) drawerTitle.focus();  // what had the focus is gone
}

/** A link that closes the drawer and filters the list of requests. */
const filterLink = (text, wanted) => link(text, () => {
  closeRequest();
  filter(wanted);
});

const DERIVED = /^(.*?)#(?:transaction|transient)\.[^]{32}/, OF_STREAM = /^((?:[^/]+\/)?[^/]+)\/\d+(?:\.#epoch\.\d+)?$/;

/** The filter that matches requests like this one: its type, and its segment, stream or scope.
 *
 * The segment of a transaction, or a transient one, never comes again, so the filter has its stream, if it has one.
 */
function filterOf(it) {
  const parts = [it.kind === "call" ? `rpc = ${it.type}` : `type = ${it.type}`], [segment] = it.segments;
  const parent = DERIVED.exec(segment)?.[1], stream = OF_STREAM.exec(parent)?.[1];
  if (stream) parts.push(nameFilter("stream", stream));
  else if (segment && parent === undefined) parts.push(nameFilter("segment", segment));
  if (it.streams.length) parts.push(streamFilter(it.streams[0]));
  return parts.join(" and ");
}

function deedsOf(it) {
  const area = element("div", { className: "result" });
  const copy = button("Copy as fixture lines", () => copyLines(it.fixture, area));
  const send = button("Send again", () => sendAgain(it, send, area));
  const rule = button("Make a rule of this", () => {
    closeRequest();
    openRule({ match: filterOf(it), do: [it.kind === "call" ? { status: "UNAVAILABLE" } : { close: "after" }] });
  });
  copy.disabled = !it.fixture.length;
  send.hidden = !can("send") || it.kind === "call";
  rule.hidden = !can("faults") || it.kind === "bytes" || it.type === "UNKNOWN";
  return element("div", null, element("div", { className: "buttons" }, copy, send, rule), area);
}

/** The heading of the streams and scopes that a call names. */
function streamsHeading(streams) {
  if (streams.length > 1) return "Streams";
  return streams[0].includes("/") ? "Stream" : "Scope";
}

function factsOf(it) {
  const segments = it.segments.map((each) =>
    element("div", null, filterLink(short(plain(each)), nameFilter("segment", each))));
  const streams = it.streams.map((each) => element("div", null, filterLink(short(plain(each)), streamFilter(each))));
  return pairs([
    ["Received", `${new Date(it.received_ms).toLocaleDateString("en-GB")} ${clock(it.received_ms)}`],
    ["Connection", filterLink(`${it.connection}`, `connection = ${it.connection}`), ` ${plain(it.role || it.peer)}`],
    it.store !== null && ["Store", String(it.store)],
    segments.length > 0 && [segments.length > 1 ? "Segments" : "Segment", ...segments],
    streams.length > 0 && [streamsHeading(it.streams), ...streams],
    it.request_id !== null && ["Request id", it.request_id],
    it.writer_id !== null && ["Writer", filterLink(it.writer_id, `writer = ${it.writer_id}`)],
    ["Size", many(it.size, "byte")],
    ["Reply", it.reply === null ? `none${it.stage === "given up" ? "" : " so far"}; ${it.stage}`
      : element("span", { className: it.failure ? "problem" : "" }, plain(it.reply)),
      it.latency_ms === null ? "" : ` after ${it.latency_ms.toFixed(3)} ms`],
    it.faults.length > 0 && ["Faults", plain(it.faults.join(", "))],
  ]);
}

function timelineOf(it) {
  const known = it.timeline.filter((each) => each.at_ms !== null), first = known.length ? known[0].at_ms : 0;
  const after = (each) => each.at_ms === null ? "" : `+${(each.at_ms - first).toFixed(3)} ms`;
  const steps = it.timeline.map((each) =>
    element("li", null, element("span", { className: "when" }, after(each)), plain(each.what)));
  return element("ol", { className: "timeline" }, ...steps);
}

function neighboursOf(it) {
  const itself = it.neighbours.find((each) => each.itself);
  const rows = it.neighbours.map((each) => {
    const name = String(each.number ?? ""), after = each.at_ms - (itself?.at_ms ?? each.at_ms);
    const cells = [
      ["n", each.opens && !each.itself ? link(name, () => openRequest(each.number)) : name],
      ["n", `${after > 0 ? "+" : ""}${after.toFixed(3)}`],
      ["", `${each.direction === "reply" ? "←" : "→"} ${plain(each.type)}`],
      ["w", short(plain(each.about))], ["n x", number(each.size)],
    ].map(([className, content]) => element("td", { className }, content));
    return element("tr", each.itself ? { className: "chosen", "aria-current": "true" } : null, ...cells);
  });
  const heads = [["Record", "n"], ["ms", "n"], ["What", ""], ["About", "w"], ["Bytes", "n x"]];
  return tableOf("Records beside it on its connection", heads, rows);
}

function tableOf(label, heads, rows, className = "") {
  const cells = heads.map(([title, of]) => element("th", { scope: "col", className: of }, title));
  const head = element("thead", null, element("tr", null, ...cells));
  return element("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: label },
    element("table", { className }, head, element("tbody", null, ...rows)));
}

// --- bytes --------------------------------------------------------------------------------------------------------

const DUMPED = 16;
const bytesOf = (hex) => hex.match(/../g) ?? [];

/** Bytes in lines of 16, with their offsets and their ASCII characters. */
function hexDump(hex) {
  const bytes = bytesOf(hex), lines = [];
  for (let at = 0; at < bytes.length; at += DUMPED) {
    const row = bytes.slice(at, at + DUMPED), codes = row.map((each) => parseInt(each, 16));
    const text = codes.map((each) => each >= 0x20 && each < 0x7f ? String.fromCharCode(each) : ".").join("");
    lines.push(`${at.toString(16).padStart(4, "0")}  ${row.join(" ").padEnd(3 * DUMPED - 1)}  ${text}`);
  }
  return lines.join("\n");
}

/** Bytes as text; what is not UTF-8 is replaced. */
function textOf(hex) {
  return new TextDecoder().decode(Uint8Array.from(bytesOf(hex), (each) => parseInt(each, 16)));
}

const TEXT_BYTES = 4096;  // of a text, what the API gives

/** The ways to show a payload, that of its form first: [name, text, the number of bytes in it]. */
function formsOf(it) {
  const raw = it.form === "hex" ? it.text : it.hex, size = raw.length / 2;
  const hex = ["Hex", () => hexDump(raw), size], text = ["Text", () => plainLines(textOf(raw)), size];
  if (it.form === "json") return [["JSON", () => plainLines(it.text), it.size], text, hex];
  return it.form === "text" ? [["Text", () => plainLines(it.text), Math.min(it.size, TEXT_BYTES)], hex] : [hex, text];
}

function payloadOf(it) {
  const area = element("pre", { tabIndex: 0 }), cut = element("span", { className: "soft" });
  const buttons = formsOf(it).map(([name, make, size]) => {
    const made = button(name, () => {
      for (const each of buttons) each.setAttribute("aria-pressed", String(each === made));
      area.className = name === "Hex" ? "hex" : "";
      area.textContent = make();
      put(cut, size < it.size ? `, the first ${number(size)} of which are shown` : "");
    });
    return made;
  });
  buttons[0].click();
  const what = { event: "Event", message: "Message", bytes: "Bytes", more: "The rest", key: "Key",
    value: "Value" }[it.kind] ?? it.kind;
  const about = element("span", { className: "grow" }, `${what} of the ${it.part}, `, many(it.size, "byte"), cut);
  return element("div", { className: "payload" }, element("div", { className: "buttons" }, about, ...buttons), area);
}

const FIELD_HEADS = [["Offset", "n"], ["Bytes", "w"], ["Field", ""], ["Value", "w"]];

/** The fields of a frame with their bytes. */
function frameSection(it) {
  const bytes = bytesOf(it.hex), isCut = (each) => each.offset + each.length > bytes.length;
  const rows = it.fields.map((each) => {
    const part = bytes.slice(each.offset, each.offset + Math.min(each.length, 16)).join(" ");
    const more = each.length > 16 || (isCut(each) && part) ? " …" : "";
    const value = each.kind === "data" ? many(each.length, "byte") : plain(each.value);
    const cells = [["n", each.offset.toString(16).padStart(4, "0")], ["w code", part + more], ["", plain(each.name)],
      ["w", [short(value), each.note && `(${plain(each.note)})`].filter(Boolean).join(" ")]];
    return element("tr", null, ...cells.map(([className, text]) => element("td", { className }, text)));
  });
  const missing = it.left_out && `${many(it.left_out, "more field")} not shown.`;
  const notes = [it.error && plain(it.error), missing].filter(Boolean);
  return section(`${plain(it.type)}, ${it.part}, ${many(it.size, "byte")}`,
    notes.length ? element("p", { className: it.error ? "problem" : "soft" }, notes.join(" ")) : null,
    tableOf(`Fields of ${plain(it.type)}`, FIELD_HEADS, rows, "bytes packed"));
}

// --- doing --------------------------------------------------------------------------------------------------------

/** Copies lines; where the browser does not allow that, they are selected for the user to copy. */
async function copyLines(lines, area) {
  const text = `${lines.join("\n")}\n`;
  const place = element("textarea", { readOnly: true, rows: 4, value: text, ariaLabel: "Fixture lines" });
  area.replaceChildren(place);
  place.focus();
  place.select();
  try {
    await navigator.clipboard.writeText(text);
    notify(`${many(lines.length, "line")} copied.`);
  } catch {  // a page over plain HTTP from another machine has no clipboard
    notify("Selected; copy with Ctrl+C.");
  }
}

/** Sends a request again, and shows what came; after a restart not, as its number is that of another request then. */
async function sendAgain(it, trigger, area) {
  trigger.disabled = true;
  notify("Sending …");
  try {
    const before = served;
    await lookAtServer();
    if (before && before.started_ms !== served.started_ms) return;
    const sent = await ask("POST", "/v1/requests/{number}/send", { parts: it, patience: 15000 });
    notify(sent.ended ? `Sent; ${sent.ended}.` : `Sent; the reply is ${sent.replies.at(-1).type}.`);
    const its = sent.connection !== null && element("p", null,
      filterLink(`Its records on connection ${sent.connection}`, `connection = ${sent.connection}`));
    const replies = sent.replies.filter((each) => !["HELLO", "KEEP_ALIVE"].includes(each.type));
    area.replaceChildren(...[its, ...replies.map(frameSection)].filter(Boolean));
  } catch (error) {
    if (!(error instanceof Refused || error instanceof Gone)) throw error;
    notify(error.message, true);
  } finally {
    trigger.disabled = false;
  }
}

// One request in the drawer, which is a modal dialog here: the focus stays inside, and returns to the row.

const newer = button("Newer", () => openNext(-1)), older = button("Older", () => openNext(1));
drawerTools.prepend(newer, older);
document.body.append(drawer);
let opened = null;  // its number

/** Shows a request. The list of requests stands still meanwhile. */
async function openRequest(asked) {
  const wanted = opened = Number(asked);
  if (!drawer.open) {
    showInDrawer(`Request ${wanted}`, []);
    drawer.showModal();
    drawerTitle.focus();
  }
  say("");
  setAddress(wanted, new URLSearchParams(location.search).get("request") === null);
  await lookAtRequest(wanted);
  drawer.scrollTop = 0;
}

drawer.addEventListener("close", () => {
  if (drawer.open) return;  // another request was opened meanwhile
  const opener = openers()[listed().indexOf(opened)];
  opened = null;
  setAddress(null, false);
  if (document.activeElement === document.body || requestsTable.contains(document.activeElement)) opener?.focus();
  lookSoon(0);
});
drawer.addEventListener("click", ({ target }) => { if (target === drawer) drawer.close(); });  // on the backdrop

/** The numbers of the listed requests, newest first. */
const listed = () => Array.from(requestsTable.querySelectorAll("tbody tr"), (row) => row.shown.number);

function openNext(by) {
  const numbers = listed(), at = numbers.indexOf(opened);
  if (at >= 0 && at + by in numbers) openRequest(numbers[at + by]);
}

function showNext() {
  const numbers = listed(), at = numbers.indexOf(opened);
  newer.disabled = at < 1;
  older.disabled = at < 0 || at === numbers.length - 1;
}

/** Requests a request and shows it, if it is still the one that is open. */
async function lookAtRequest(wanted) {
  const it = await trying(() => ask("GET", "/v1/requests/{number}", { parts: { number: wanted } }), (error) => {
    if (opened !== wanted) return;
    showInDrawer(`Request ${wanted}`, []);
    say(error.message, true);
  });
  if (it && opened === wanted) showRequest(it);
}

function showRequest(it) {
  showNext();
  drawer.dataset.waits = it.reply === null && it.stage !== "given up" ? "yes" : "";
  const known = JSON.stringify(it);
  if (drawerParts.dataset.known === known && drawerParts.childElementCount) return;
  drawerParts.dataset.known = known;
  showInDrawer(`${plain(it.type)} ${it.number}`, [
    deedsOf(it), factsOf(it), section("Timeline", timelineOf(it)),
    it.payload.length > 0 && section("Payload", ...it.payload.map(payloadIn)),
    ...it.frames.filter((frame) => frame.fields.length || frame.error).map(frameSection),
    section("On its connection", neighboursOf(it)),
  ]);
  if (!drawer.contains(document.activeElement)) drawerTitle.focus();  // what had the focus is gone
}

const filterLink = (text, wanted) => link(text, () => {
  drawer.close();
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
    drawer.close();
    openRule({ match: filterOf(it), do: [it.kind === "call" ? { status: "UNAVAILABLE" } : { close: "after" }] });
  });
  copy.disabled = !it.fixture.length;
  send.hidden = !can("send") || it.kind === "call";
  rule.hidden = !can("faults") || it.kind === "bytes" || it.type === "UNKNOWN";
  return element("div", null, element("div", { className: "buttons" }, copy, send, rule), area);
}

function factsOf(it) {
  const segments = it.segments.map((each) =>
    element("div", null, filterLink(shown(each), nameFilter("segment", each))));
  const streams = it.streams.map((each) => element("div", null, filterLink(shown(each), streamFilter(each))));
  return pairs([
    ["Received", `${new Date(it.received_ms).toLocaleDateString("en-GB")} ${clock(it.received_ms)}`],
    ["Connection", filterLink(`${it.connection}`, `connection = ${it.connection}`), ` ${plain(it.role || it.peer)}`],
    it.store !== null && ["Store", String(it.store)],
    segments.length > 0 && ["Segment", ...segments],
    streams.length > 0 && [it.streams[0].includes("/") ? "Stream" : "Scope", ...streams],
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
  const first = it.timeline.find((each) => each.at_ms !== null)?.at_ms;
  const after = (each) => each.at_ms === null ? "" : `+${(each.at_ms - first).toFixed(3)} ms`;
  return element("ol", { className: "timeline" }, ...it.timeline.map((each) =>
    element("li", null, element("span", { className: "when" }, after(each)), plain(each.what))));
}

function neighboursOf(it) {
  const itself = it.neighbours.find((record) => record.itself);
  const region = tableOf("Records beside it on its connection",
    [["Record", "n"], ["ms", "n"], ["What"], ["About", "w"], ["Bytes", "n x"]], it.neighbours.map((record) => {
      const { number: other, at_ms: at } = record, after = at - (itself?.at_ms ?? at);
      const opener = record.opens && record !== itself ? link(String(other), () => openRequest(other)) : other ?? "";
      const what = `${record.direction === "reply" ? "←" : "→"} ${plain(record.type)}`;
      return [opener, `${after > 0 ? "+" : ""}${after.toFixed(3)}`, what, shown(record.about), number(record.size)];
    }));
  region.querySelectorAll("tbody tr")[it.neighbours.indexOf(itself)]?.classList.add("chosen");
  return region;
}

const bytesOf = (text) => Uint8Array.from(text.match(/../g) ?? [], (byte) => parseInt(byte, 16));
const TEXT_BYTES = 4096;  // of a text, what the API gives

function payloadIn(it) {
  const raw = bytesOf(it.form === "hex" ? it.text : it.hex), isText = it.form === "text";
  const cut = (size) => size < it.size ? `, the first ${number(size)} of which are shown` : "";
  const text = () => plainLines(isText ? it.text : new TextDecoder().decode(raw));
  const forms = [["Text", text, cut(isText ? Math.min(it.size, TEXT_BYTES) : raw.length)],
    ["Hex", () => hexDump(raw), cut(raw.length)]];
  if (it.form === "json") forms.unshift(["JSON", () => plainLines(it.text), ""]);
  const what = { more: "The rest" }[it.kind] ?? it.kind;
  return payloadOf(`${what} of the ${it.part}, ${many(it.size, "byte")}`, it.form === "hex" ? forms.reverse() : forms);
}

function frameSection(it) {
  const bytes = bytesOf(it.hex), rows = it.fields.map((field) => {
    const value = field.kind === "data" ? many(field.length, "byte") : shown(field.value);
    const text = [value, field.note && `(${plain(field.note)})`].filter(Boolean).join(" ");
    const part = bytes.subarray(field.offset, field.offset + field.length);
    return [field.offset, field.length, part, plain(field.name), text];
  });
  const missing = it.left_out && `${many(it.left_out, "more field")} not shown.`;
  const notes = [it.error && plain(it.error), missing].filter(Boolean).join(" ");
  return section(`${plain(it.type)}, ${it.part}, ${many(it.size, "byte")}`,
    notes && remark(notes, Boolean(it.error)), bytesTable(`Fields of ${plain(it.type)}`, rows));
}

/** Copies lines; where the browser does not allow that, they are selected for the user to copy. */
function copyLines(lines, area) {
  const value = `${lines.join("\n")}\n`;
  const place = element("textarea", { readOnly: true, rows: 4, value, ariaLabel: "Fixture lines" });
  area.replaceChildren(place);
  place.select();
  const copying = navigator.clipboard?.writeText(value) ?? Promise.reject();  // plain HTTP has no clipboard
  return copying.then(() => say(`${many(lines.length, "line")} copied.`), () => say("Selected; copy with Ctrl+C."));
}

/** Sends a request again, and shows what came; after a restart not, as its number is that of another request then. */
async function sendAgain(it, trigger, area) {
  trigger.disabled = true;
  say("Sending …");
  await trying(async () => {
    const before = served;
    await lookAtServer();
    if (before && before.started_ms !== served.started_ms) return;
    const sent = await ask("POST", "/v1/requests/{number}/send", { parts: it, patience: 15000 });
    say(sent.ended ? `Sent; ${sent.ended}.` : `Sent; the reply is ${sent.replies.at(-1).type}.`);
    const its = sent.connection !== null && element("p", null,
      filterLink(`Its records on connection ${sent.connection}`, `connection = ${sent.connection}`));
    const replies = sent.replies.filter((each) => !["HELLO", "KEEP_ALIVE"].includes(each.type));
    area.replaceChildren(...[its, ...replies.map(frameSection)].filter(Boolean));
  });
  trigger.disabled = false;
}

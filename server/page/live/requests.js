// The panel of the latest requests. The filter is in the address, so that it can be shared.

const requestsTable = grid("The latest requests", "records");
const paused = element("input", { type: "checkbox", name: "pause" });
filterInput.setAttribute("aria-describedby", "requests-note");
filterTools.append(button("Clear", () => filter("")), element("label", { className: "row" }, paused, " Pause"));
let match = "";
const LONGEST_ADDRESS = 4000;  // characters of a filter; the server refuses long addresses

const requestsPanel = addPanel({
  id: "requests",
  title: "Requests",
  open: true,
  tools: element("div", null, filterForm, filterCaret),
  body: [requestsTable, element("p", { className: "keys" }, ...[["/", "filter"], ["j k", "next, previous"],
    ["Enter", "open"], ["Esc", "close"], ["p", "pause"]].map(([key, text]) =>
    element("span", null, element("kbd", null, key), ` ${text}`)))],
  needs: "requests",
  async look() {
    if (isStill()) return;
    const asked = match;
    let it;
    try {
      it = await ask("GET", "/v1/requests", { query: { match: asked, limit: 100 } });
    } catch (error) {
      if (error instanceof Refused && asked !== "") pointAt(asked, error.message);
      throw error;
    }
    if (asked !== match || isStill()) return;
    pointAt(asked, "");
    requestsPanel.count(it.last ? `${many(it.last, "request")} so far` : "");
    requestsPanel.note([asked && !it.requests.length && "No request matches.",
      it.forgotten && `Requests up to number ${number(it.forgotten)} are no longer kept.`].filter(Boolean).join(" "));
    fill(requestsTable, [
      ["Number", (each) => each.number, "n a"],
      ["Time", (each) => clock(each.received_ms), "x"],
      ["Connection", (each) => each.role || each.connection || "controller", "n x"],
      ["Store", (each) => each.store ?? "", "n x"],
      ["Type", (each) => each.type, "t"],
      ["Segment or stream", (each) => [...each.segments, ...each.streams].join(", "), "w"],
      ["Request id", (each) => each.request_id ?? "", "n x"],
      ["Bytes", (each) => number(each.size), "n x"],
      ["Reply", (each) => each.reply ?? `(${each.stage})`],
      ["ms", (each) => each.latency_ms === null ? "" : each.latency_ms.toFixed(2), "n z"],
      ["Faults", (each) => each.faults.join(", "), "w s"],
    ], it.requests, (each) => each.number, { classOf: (each) => each.failure ? "bad" : "",
      act: (each) => openRequest(each.number) });
    for (const each of openers()) each.tabIndex = -1;  // rows are reached with the arrow keys
    showNext();
  },
});

// The numbers of another run are those of other requests.
onRestart.push(() => {
  paused.checked = false;
  drawer.close();
  requestsTable.querySelector("tbody")?.replaceChildren();
});

const isStill = () => paused.checked || (drawer.open && listed().length > 0);

/** The filter for a name: a regular expression if it has line breaks, which an input field drops. */
function nameFilter(field, name) {
  if (!/[\n\r]/.test(name)) return `${field} = "${name.replace(/["\\]/g, "\\$&")}"`;
  const escaped = name.replace(/[/\\^$.*+?()[\]{}|]/g, "\\$&").replaceAll("\n", "\\n").replaceAll("\r", "\\r");
  return `${field} ~ /\\A${escaped}\\z/`;
}

const streamFilter = (name) => nameFilter(name.includes("/") ? "stream" : "scope", name);

function setAddress(opened, isNew) {
  const query = new URLSearchParams();
  if (match && match.length <= LONGEST_ADDRESS) query.set("match", match);
  if (opened) query.set("request", opened);
  const address = `${location.pathname}${query.size ? `?${query}` : ""}${location.hash}`;
  if (address === location.pathname + location.search + location.hash) return;
  history[isNew ? "pushState" : "replaceState"](null, "", address);
}

function followAddress() {
  const query = new URLSearchParams(location.search), opened = query.get("request");
  match = query.get("match") ?? "";
  filterInput.value = match;
  if (/^\d+$/.test(opened ?? "")) openRequest(opened);
  else drawer.close();
  lookSoon(0);
}
addEventListener("popstate", followAddress);

function filter(text) {
  match = text.trim();
  filterInput.value = text;
  requestsPanel.root.open = true;
  setAddress(null, true);
  lookSoon(0);
}
onSubmit(filterForm, () => {
  paused.checked = false;
  filter(filterInput.value);
});

const openers = () => Array.from(requestsTable.querySelectorAll("tbody .link"));

function step(by) {
  const rows = openers(), at = rows.indexOf(document.activeElement);
  rows[at < 0 ? 0 : Math.max(0, Math.min(rows.length - 1, at + by))]?.focus();
}

const STEPS = { j: 1, k: -1, ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -1000, End: 1000 };

document.addEventListener("keydown", (event) => {
  const isText = event.target.matches?.("input:not([type=checkbox]), textarea, select");
  const isOther = event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey;
  if (isText || isOther || requestsPanel.root.hidden) return;
  const isLetter = event.key.length === 1, isHere = requestsTable.contains(event.target);
  if (drawer.open) {
    if (!isLetter || !(event.key in STEPS)) return;
    openNext(STEPS[event.key]);
  } else if (event.key === "/") {
    requestsPanel.root.open = true;
    filterInput.focus();
    filterInput.select();
  } else if (event.key === "p") {
    paused.checked = !paused.checked;
    say(paused.checked ? "The list of requests is paused." : "The list of requests goes on.");
    lookSoon(0);
  } else if (event.key in STEPS && (isLetter || isHere)) {
    requestsPanel.root.open = true;
    step(STEPS[event.key]);
  } else {
    return;
  }
  event.preventDefault();
});
requestsTable.addEventListener("click", (event) => {
  const row = event.target.closest("tbody tr");
  if (row && !event.target.closest("button") && !String(getSelection())) openRequest(row.shown.number);
});

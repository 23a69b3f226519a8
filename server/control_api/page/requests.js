// The panel of the latest requests.

const requestsTable = grid("The latest requests");
const requestsForm = element("form", { role: "search" },
  element("label", null, element("span", null, "Filter, such as ", element("code", null, 'type = READ_SEGMENT and segment ~ "scope/*"')),
    element("input", { className: "long", name: "match", autocomplete: "off", spellcheck: false, "aria-describedby": "requests-note" })),
  element("button", null, "Filter"),
  element("label", { className: "row" }, element("input", { type: "checkbox", name: "pause" }), " Pause"));
let match = "";

const requestsPanel = addPanel({
  id: "requests",
  title: "Requests",
  tools: requestsForm,
  body: [requestsTable],
  needs: "requests",
  async look() {
    const form = requestsForm.elements;
    if (form.pause.checked) return;
    const asked = match;
    let it;
    try {
      it = await ask("GET", "/v1/requests", { query: { match: asked, limit: 100 } });
    } catch (error) {
      form.match.setAttribute("aria-invalid", String(error instanceof Refused && asked !== ""));
      throw error;
    }
    form.match.removeAttribute("aria-invalid");
    requestsPanel.count(it.last ? `the last record is number ${number(it.last)}` : "");
    requestsPanel.note(it.forgotten ? `Records up to number ${number(it.forgotten)} are no longer kept.` : "");
    fill(requestsTable, [
      ["Number", (each) => each.number, "n"],
      ["Time", (each) => clock(each.received_ms)],
      ["Connection", (each) => each.role || each.connection, "n"],
      ["Store", (each) => each.store ?? "", "n"],
      ["Type", (each) => each.type],
      ["Segment", (each) => each.segments.join(", "), "w"],
      ["Request id", (each) => each.request_id ?? "", "n"],
      ["Bytes", (each) => number(each.size), "n"],
      ["Stage", (each) => each.stage],
      ["Reply", (each) => each.reply ?? ""],
      ["ms", (each) => each.latency_ms === null ? "" : each.latency_ms.toFixed(2), "n"],
      ["Faults", (each) => each.faults.join(", "), "w"],
    ], it.requests, (each) => each.number, { isBad: (each) => each.failure });
  },
});

requestsForm.addEventListener("submit", (event) => {
  event.preventDefault();
  match = requestsForm.elements.match.value;
  lookSoon(0);
});

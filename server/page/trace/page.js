// The page of a trace, or of two that are compared: connects filter, timelines, lists and drawer.

const tools = byId("tools");

class Page {
  constructor() {
    Object.assign(this, { views: [], current: null, filtering: 0, opening: 0, differences: [] });
    byId("board").append(drawer);
    tools.before(filterForm, filterCaret);
    filterInput.setAttribute("aria-describedby", "filter-said");
    filterInput.setAttribute("list", "filter-names");
    filterForm.append(element("datalist", { id: "filter-names" },
      ...Object.keys(SPEC.filter.names).map((name) => element("option", { value: name }))));
  }

  async load() {
    const count = document.querySelectorAll("script[id$='-tables']").length, found = byId("differences");
    const letterOf = (_, index) => count > 1 ? (index + 10).toString(36).toUpperCase() : "";  // from A
    const letters = Array.from({ length: count }, letterOf);
    const on = { move: (view) => this.moved(view), focus: (view) => { this.current = view; },
      open: (view, at) => this.open(view, at), filter: (text) => this.filter(filterInput.value = text) };
    const traces = letters.map((_, index) => new Trace((name) => byId(`${index}-${name}`).textContent));
    for (const trace of traces) await trace.load();
    byId("loading").remove();
    byId("views").classList.toggle("two", count > 1);
    if (found) this.showDifferences(traces, await parsed(found.textContent));
    for (const [index, trace] of traces.entries()) {
      const view = new View(trace, letters[index], on);
      this.views.push(view);
      view.timeline.marked = new Set(this.differences.map(({ at }) => at[index]).filter((at) => at >= 0));
    }
    this.current = this.views[0];
    document.title = `segstore: ${traces.map((trace) => plain(trace.tables.file)).join(" and ")}`;
    const problems = traces.reduce((sum, trace) => sum + trace.problemsBefore[trace.count], 0);
    byId("problem-count").textContent = many(problems, "problem");
    for (const name of ["previous", "next"]) tools.elements[name].disabled = problems === 0;
    byId("together").hidden = count < 2;
    byId("views").setAttribute("aria-busy", "false");
    this.listen();
    this.restore();
  }

  /** Opens the record that the address names, such as #record=12 or #B=12. */
  restore() {
    const [, letter, place] = /^#(record|[A-Z0-9]+)=(\d+)$/.exec(location.hash) ?? [], at = Number(place) - 1;
    const view = this.views.find((each) => (each.letter || "record") === letter);
    if (!view || !(at >= 0 && at < view.trace.count)) return;
    view.timeline.around(at, 10);
    view.open(at);
  }

  moved({ timeline: { from, span } }) {
    if (byId("together").hidden || !tools.together.checked) return;
    for (const { timeline } of this.views) {
      if (timeline.from === from && timeline.span === span) continue;
      Object.assign(timeline, { from, span });
      timeline.changed();
    }
  }

  listen() {
    onSubmit(filterForm, () => {
      clearTimeout(this.typing);
      this.filter(filterInput.value);
    });
    filterInput.addEventListener("input", () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.filter(filterInput.value), 250);
    });
    onSubmit(tools);
    const setOrder = ({ timeline }) => timeline.setOrder(tools.axis.value === "order");
    tools.axis.addEventListener("change", () => this.views.forEach(setOrder));
    const acts = {
      in: () => this.current.timeline.zoom(0.6),
      out: () => this.current.timeline.zoom(1.6),
      fit: () => this.views.forEach((view) => view.timeline.fit()),
      previous: () => this.current.nextProblem(-1),
      next: () => this.current.nextProblem(1),
      help: () => byId("keys").showModal(),
    };
    for (const [name, act] of Object.entries(acts)) tools[name].addEventListener("click", act);
    const redraw = () => this.views.forEach(({ timeline }) => timeline.changed());
    matchMedia("(prefers-color-scheme:dark)").addEventListener("change", redraw);
    drawer.addEventListener("close", () => {
      this.opening++;
      history.replaceState(null, "", location.pathname + location.search);
      const focused = document.activeElement;
      if (focused === document.body || drawer.contains(focused)) this.current.canvas.focus({ preventScroll: true });
    });
    document.addEventListener("keydown", (event) => this.key(event));
    addEventListener("hashchange", () => this.restore());
  }

  key(event) {
    if (byId("keys").open) return;
    if (event.key === "Escape" && drawer.open) drawer.close();
    const isText = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (isText || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") {
      event.preventDefault();
      filterInput.focus();
    } else if (event.key === "o") {
      tools.axis.value = tools.axis.value === "order" ? "time" : "order";
      tools.axis.dispatchEvent(new Event("change"));
    } else if (event.key === "n" || event.key === "p") this.current.nextProblem(event.key === "n" ? 1 : -1);
  }

  async filter(text) {
    const turn = ++this.filtering, isCurrent = () => turn === this.filtering, note = byId("filter-said");
    let problem = "";
    try {
      for (const view of this.views) await view.filter(text, isCurrent);
    } catch (error) {
      if (!(error instanceof FilterError)) throw error;
      problem = error.message;
    }
    if (!isCurrent()) return;
    pointAt(text, problem);
    note.classList.toggle("problem", problem !== "");
    const counts = this.views.map(({ letter, shownCount, trace }) =>
      `${letter && `${letter}: `}${many(shownCount, "record")} of ${number(trace.count)}`).join(", ");
    const cut = this.views.reduce((sum, { trace }) => sum + trace.shortened, 0);
    const missing = cut ? ` Of ${many(cut, "record")} only a part is on this page.` : "";
    note.textContent = plain(problem) || (text.trim() ? `${counts} match.${missing}` : "");
  }

  async open(view, at) {
    const turn = ++this.opening, parts = await recordDetails(view, at, (other) => view.open(other));
    if (turn !== this.opening) return;
    const { letter, trace } = view, wasOpen = drawer.open;
    const title = `${letter && `${letter}, `}${at + 1}: ${plain(trace.nameOf(at))}`;
    showInDrawer(title, [...this.comparison(view, at), ...parts]);
    drawer.open = true;  // beside the timeline, which keeps the focus
    drawer.scrollTop = 0;
    if (!wasOpen && document.activeElement?.closest(".records, .differences")) drawerTitle.focus();
    history.replaceState(null, "", `#${letter || "record"}=${at + 1}`);
  }

  showDifferences(traces, differences) {
    this.differences = differences.map((each) => ({ ...each, at: each.places.map((place) => place - 1) }));
    const connectionOf = (at, side) => at < 0 ? [] : [traces[side].connectionOf(traces[side].lane[at])];
    const rows = this.differences.map((each) => {
      const side = each.at[0] < 0 ? 1 : 0, name = plain(traces[side].nameOf(each.at[side]));
      return [
        link(shown(`${name}: ${each.text}`), () => this.openDifference(each)),
        each.direction ? "reply" : "request",
        ...each.at.map((at) => at < 0 ? "" : String(at + 1)),
        Array.from(new Set(each.at.flatMap(connectionOf))).join(", "),
      ];
    });
    const ignored = "Times are not compared; ids may differ if each always stands for the same one in the other trace.";
    const count = `${many(rows.length && differences.length, "stream")} differ${differences.length === 1 ? "s" : ""}`;
    const which = "the first difference of each direction of each connection, and of each method of the controller";
    const columns = [["Difference", "w t"], ["Direction"], ["In A", "n"], ["In B", "n"], ["Connection", "w"]];
    byId("views").append(element("section", { className: "differences", ariaLabel: "Differences" },
      element("h2", null, "Differences"),
      remark(`${rows.length ? `${count}: ${which}.` : "The traces have no difference."} ${ignored}`),
      rows.length > 0 && tableOf("List of the differences", columns, rows, "packed")));
  }

  openDifference({ at: [left, right] }) {
    if (right >= 0) this.views[1].select(right);
    if (left >= 0) this.views[0].open(left);
    else if (right >= 0) this.views[1].open(right);
  }

  /** For a record that differs: its fields in both traces, and a link to its counterpart. */
  comparison(view, at) {
    const side = this.views.indexOf(view), difference = this.differences.find((each) => each.at[side] === at);
    if (!difference) return [];
    const other = difference.at[1 - side], value = (each) => each === null ? "nothing" : valueText(each);
    const rows = difference.fields.map(({ field, left, right }) =>
      [field || "bytes not read", value(left), value(right)]);
    const columns = [["Field", "w"], ["In A", "w differs"], ["In B", "w differs"]];
    return [section("Difference",
      other < 0 && element("p", null, `Only ${side ? "B" : "A"} has this record.`),
      rows.length > 0 && tableOf("Fields that differ", columns, rows),
      other >= 0 && link(`Show it in ${side ? "A" : "B"}`, () => this.views[1 - side].open(other)))];
  }
}

const page = new Page();
page.load().then(() => performance.mark("ready"), (error) => {
  byId("views").append(element("p", { className: "problem", role: "alert" },
    `The trace could not be shown: ${error.message}`));
  throw error;
});

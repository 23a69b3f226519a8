// The parts of the page that belong to one trace: facts, timeline, and the list of records.

const LIST = 50;

const say = (text) => put(byId("said"), text);

class View {
  /** `on.open(view, at)`: a record is opened; `on.focus(view)`: it is used; `on.move(view)`: it shows another range. */
  constructor(trace, letter, on) {
    Object.assign(this, { trace, letter, on, from: 0, chosen: null });
    this.title = letter ? `${letter}: ${plain(trace.tables.file)}` : plain(trace.tables.file);
    this.records = grid(`Records of ${this.title}`, "records");
    this.where = element("span", { className: "where" });
    const places = { First: () => 0, Previous: () => this.from - LIST, Next: () => this.from + LIST,
      Last: () => this.shownCount - 1 };
    this.pages = Object.entries(places).map(([label, place]) => button(label, () => this.list(place())));
    const stage = element("div", { className: "stage" }), navigation = `Pages of records of ${this.title}`;
    byId("views").append(element("section", { className: "view", ariaLabel: this.title },
      element("h2", null, this.title), ...this.facts(), stage, this.records,
      element("nav", { className: "buttons soft", ariaLabel: navigation }, ...this.pages, this.where)));
    const label = `Timeline of ${this.title}: ${many(trace.count, "record")}, ${this.connections}. Arrow keys choose `
      + "records, Enter opens one; the button Keys lists all.";
    this.timeline = new Timeline(trace, stage, label, { select: (at) => this.open(at), move: () => on.move(this) });
    this.canvas = this.timeline.canvas;
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("focus", () => on.focus(this));
    this.records.addEventListener("click", (event) => {
      const row = event.target.closest("tbody tr");
      if (row && !event.target.closest("button")) this.open(row.shown);
    });
    this.list(0);
  }

  get connections() {
    return many(this.trace.tables.lanes.filter(([connection]) => connection !== "0").length, "connection");
  }

  facts() {
    const { tables, count, problemsBefore, times } = this.trace;
    const facts = [
      many(count, "record"), this.connections, count ? duration(times[count - 1]) : "0 s",
      many(problemsBefore[count], "problem"), `${tables.form} of ${many(tables.bytes, "byte")}`,
      tables.recorder && `recorded by ${plain(tables.recorder)}`,
    ].filter(Boolean).join(" · ");
    const { length: damaged } = tables.gaps, { notes } = tables;
    const about = damaged ? `${many(damaged, "part")} of the file could not be read` : "What is not on this page";
    const properties = { className: damaged ? "notes" : "notes quiet", open: damaged > 0, hidden: !notes.length };
    const links = Object.entries(tables.broken).map(([rule, { verdicts }]) =>
      link(`${rule} (${verdicts.length})`, () => this.on.filter(`broken = "${rule}"`)));
    const rules = element("p", { className: "links problem", hidden: !links.length },
      `‼ ${many(links.length, "rule")} broken:`, ...links);
    const list = element("ul", null, ...notes.map((note) => element("li", null, plain(note))));
    return [element("p", { className: "facts" }, facts), rules,
      element("details", properties, element("summary", null, about), list)];
  }

  get shownCount() {
    return this.chosen ? this.chosen.length : this.trace.count;
  }

  recordOf(place) {
    return this.chosen ? this.chosen[place] : place;
  }

  /** The place of a record, or of the next one, among those that match the filter. */
  placeOf(at) {
    return this.chosen ? this.trace.chosenBefore[at] : at;
  }

  list(place) {
    const { trace } = this, count = this.shownCount, page = Math.floor(Math.min(place, count - 1) / LIST);
    this.from = Math.max(page * LIST, 0);
    const to = Math.min(this.from + LIST, count);
    const records = Array.from({ length: to - this.from }, (_, index) => this.recordOf(this.from + index));
    const segments = (at) => {
      const names = trace.namesOf(at).map(([name]) => name), more = names.length - 3;
      return names.slice(0, 3).join(", ") + (more > 0 ? ` and ${more} more` : "");
    };
    const colourOf = (at) => trace.verdicts.has(at) ? "bad" : MARKS[trace.mark[at]][2];
    fill(this.records, [
      ["Record", (at) => at + 1, "n a"],
      ["Time", (at) => duration(Number(trace.since[at])), "n"],
      ["Connection", (at) => trace.connectionOf(trace.lane[at]), "x"],
      ["Direction", (at) => `${trace.what[at] & REPLY ? "←" : "→"} ${trace.sideOf(at)}`],
      ["What", (at) => (trace.verdicts.has(at) ? "‼ " : "") + MARKS[trace.mark[at]][1] + trace.nameOf(at), "t"],
      ["Segment", segments, "w"],
      ["Bytes", (at) => number(trace.size[at]), "n x"],
      ["Latency", (at) => trace.latencyOf(at), "n z"],
    ], records, (at) => at, { act: (at) => this.open(at), titleOf: (at) => trace.problemOf(at),
      classOf: (at) => `${colourOf(at)}${at === this.timeline.selected ? " chosen" : ""}` });
    const range = `${number(this.from + 1)} to ${number(to)} of ${number(count)}`;
    put(this.where, count ? range : "No record matches.");
    this.pages.forEach((page, index) => { page.disabled = index < 2 ? this.from === 0 : to >= count; });
  }

  /** Selects a record: in the timeline, in the list and for screen readers. */
  select(at) {
    this.timeline.select(at);
    this.on.focus(this);
    this.list(this.placeOf(at));
    const { trace } = this, connection = trace.connectionOf(trace.lane[at]);
    const row = this.records.querySelector("tr.chosen");
    if (row) this.records.scrollTop = row.offsetTop - 120;
    const place = connection === "controller" ? connection : `connection ${connection}`;
    const problem = trace.problemOf(at) && `, ${trace.problemOf(at)}`;
    const what = `${plain(trace.nameOf(at))}, ${trace.sideOf(at)}, ${place}`;
    say(`Record ${at + 1}: ${what}, at ${duration(Number(trace.since[at]))}${problem}`);
  }

  open(at) {
    this.select(at);
    this.on.open(this, at);
  }

  /** The next record in a direction that matches the filter; `from` itself is not. */
  next(from, step) {
    if (!this.shownCount) return -1;
    const isListed = from >= 0 && (!this.chosen || this.trace.matches[from]);
    const place = from < 0 ? 0 : this.placeOf(from) + (step < 0 ? -1 : isListed ? 1 : 0);
    return this.recordOf(Math.max(Math.min(place, this.shownCount - 1), 0));
  }

  nextProblem(step) {
    const { problemsBefore, count } = this.trace, total = problemsBefore[count];
    if (!total) return;
    const at = this.timeline.selected, after = step > 0 ? problemsBefore[at + 1] - problemsBefore[at] : -1;
    const wanted = at < 0 ? 0 : (problemsBefore[at] + after + total) % total;
    this.choose(firstPlace(0, count, (record) => problemsBefore[record + 1] > wanted));
  }

  choose(at) {
    if (at < 0) return;
    if (drawer.open) this.open(at);
    else this.select(at);
  }

  /** The record nearest in time on the connection above or below. */
  neighbour(step) {
    const { trace, timeline } = this, at = timeline.selected;
    if (at < 0) return this.choose(this.next(-1, 1));
    const lane = trace.lane[at] + step;
    if (lane < 0 || lane >= trace.tables.lanes.length) return undefined;
    const end = trace.laneStart[lane + 1];
    return this.choose(trace.ofLane[Math.min(timeline.placeOf(trace.laneStart[lane], end, timeline.pos(at)), end - 1)]);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { timeline, trace } = this, at = timeline.selected, isShift = event.shiftKey;
    const pos = at >= 0 ? timeline.pos(at) : undefined;
    const act = {
      ArrowLeft: () => isShift ? timeline.pan(-0.15) : this.choose(this.next(at, -1)),
      ArrowRight: () => isShift ? timeline.pan(0.15) : this.choose(this.next(at, 1)),
      ArrowUp: () => this.neighbour(-1),
      ArrowDown: () => this.neighbour(1),
      Home: () => this.choose(this.shownCount ? this.recordOf(0) : -1),
      End: () => this.choose(this.shownCount ? this.recordOf(this.shownCount - 1) : -1),
      Enter: () => at >= 0 && this.open(at),
      "+": () => timeline.zoom(0.6, pos),
      "-": () => timeline.zoom(1.6, pos),
      0: () => timeline.fit(),
      r: () => at >= 0 && this.choose(trace.replyOf[at] >= 0 ? trace.replyOf[at] : trace.requestOf[at]),
    }[{ " ": "Enter", "=": "+" }[event.key] ?? event.key];
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  }

  async filter(text, isCurrent) {
    const matches = text.trim() ? await matching(text, this.trace, isCurrent) : null;
    if (!isCurrent()) return;
    this.trace.choose(matches);
    this.chosen = matches && Int32Array.from(matches.keys()).filter((at) => matches[at]);
    this.timeline.changed();
    this.list(this.timeline.selected >= 0 ? this.placeOf(this.timeline.selected) : 0);
  }
}

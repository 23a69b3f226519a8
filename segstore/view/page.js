// The page: loads one trace, or two that are compared, and connects filter, timelines, lists and drawer.

const byId = (id) => document.getElementById(id);
const tools = byId("tools"), drawer = byId("drawer");
const LIST = 50;
const parsed = new Promise((resolve) => {
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", resolve);
  else resolve();
});
const many = (count, what) => `${count.toLocaleString("en")} ${what}${count === 1 ? "" : "s"}`;

function say(text) {
  byId("said").textContent = text;
}

/** The parts of the page that belong to one trace. */
class View {
  constructor(trace, letter, on) {
    this.trace = trace;
    this.letter = letter;
    this.on = on;
    this.root = byId("view").content.firstElementChild.cloneNode(true);
    byId("views").append(this.root);
    this.from = 0;
    this.chosen = null;
    this.describe();
    this.timeline = new Timeline(trace, this.root, { select: (at) => this.open(at), move: () => on.move(this) });
    this.canvas = this.timeline.canvas;
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("focus", () => on.focus(this));
    const places = {
      first: () => 0,
      back: () => this.from - LIST,
      forth: () => this.from + LIST,
      last: () => this.shownCount - 1,
    };
    for (const [name, where] of Object.entries(places)) {
      this.root.querySelector(`[name=${name}]`).addEventListener("click", () => this.list(where()));
    }
    this.root.querySelector("tbody").addEventListener("click", (event) => {
      const row = event.target.closest("tr");
      if (row) this.open(row.at);
    });
    this.list(0);
  }

  describe() {
    const { tables, count, backwards } = this.trace, file = visible(tables.file);
    const title = this.letter ? `${this.letter}: ${file}` : file;
    const bad = this.trace.problemsBefore[count], last = count ? duration(this.trace.times[count - 1]) : "0 s";
    this.root.setAttribute("aria-label", title);
    this.root.querySelector("h2").textContent = title;
    this.root.querySelector(".facts").textContent = [
      many(count, "record"), many(this.trace.connectionCount, "connection"), last, many(bad, "problem"),
      `${tables.form} of ${many(tables.bytes, "byte")}`, tables.recorder && `recorded by ${visible(tables.recorder)}`,
    ].filter(Boolean).join(" · ");
    const notes = tables.gaps.map(([at, text]) => `Before record ${at + 1}: ${visible(text)}`), damaged = notes.length;
    if (tables.left_out) {
      const longer = `${many(tables.left_out, "record")} longer than ${tables.head + tables.tail} bytes`;
      const kept = `their first ${tables.head} and last ${tables.tail} bytes are on this page`;
      const others = `the others (${many(tables.left_out_bytes, "byte")}) are only in the file`;
      notes.push(`${longer}: ${kept}, ${others}.`);
    }
    if (backwards) {
      const earlier = `${many(backwards, "record")} with a time before that of an earlier one`;
      notes.push(`${earlier}: drawn at the later time.`);
    }
    const list = this.root.querySelector(".notes");
    list.hidden = !notes.length;
    list.classList.toggle("quiet", !damaged);
    list.open = damaged > 0;
    list.querySelector("summary").textContent = damaged ? `${many(damaged, "part")} of the file could not be read`
      : "What is not on this page";
    list.querySelector("ul").append(...notes.slice(0, 1000).map((each) => element("li", null, each)));
    this.root.querySelector(".scroll").setAttribute("aria-label", `Records of ${title}`);
    this.root.querySelector("nav").setAttribute("aria-label", `Pages of records of ${title}`);
    const counts = `${many(count, "record")}, ${many(this.trace.connectionCount, "connection")}`;
    const keys = "Arrow keys choose records, Enter opens one; the button Keys lists all.";
    this.root.querySelector(".lanes canvas").setAttribute("aria-label", `Timeline of ${title}: ${counts}. ${keys}`);
  }

  // --- the list -------------------------------------------------------------------------------------------------

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
    const { trace } = this, count = this.shownCount;
    this.from = Math.max(Math.min(Math.floor(place / LIST) * LIST, Math.floor((count - 1) / LIST) * LIST), 0);
    const to = Math.min(this.from + LIST, count), rows = [];
    for (let each = this.from; each < to; each++) rows.push(this.row(this.recordOf(each)));
    this.root.querySelector("tbody").replaceChildren(...rows);
    const range = `${(this.from + 1).toLocaleString("en")} to ${to.toLocaleString("en")}`;
    const where = count ? `${range} of ${count.toLocaleString("en")}` : "No record matches.";
    this.root.querySelector(".where").textContent = where;
    const button = (name) => this.root.querySelector(`[name=${name}]`);
    for (const name of ["first", "back"]) button(name).disabled = this.from === 0;
    for (const name of ["forth", "last"]) button(name).disabled = this.from + LIST >= count;
    trace.listed = this.from;
  }

  row(at) {
    const { trace } = this, asked = trace.requestOf[at], number = String(at + 1);
    const cell = (text, className = "") => element("td", { className }, text);
    const names = trace.namesOf(at).map(([name]) => name), more = names.length - 3;
    const row = element("tr", { className: ["", "bad", "warn", "warn"][trace.mark[at]] },
      cell(element("button", { type: "button", className: "link", ariaLabel: `Record ${number}` }, number), "n"),
      cell(duration(Number(trace.since[at])), "n"),
      cell(trace.connectionOf(trace.lane[at])),
      cell(`${trace.what[at] & REPLY ? "←" : "→"} ${trace.sideOf(at)}`),
      cell(["", "✗ ", "⚠ ", "☐ "][trace.mark[at]] + visible(trace.nameOf(at))),
      cell(shown(names.slice(0, 3).join(", ") + (more > 0 ? ` and ${more} more` : "")), "w"),
      cell(trace.size[at].toLocaleString("en"), "n"),
      cell(asked < 0 ? "" : duration(Number(trace.since[at] - trace.since[asked])), "n"));
    row.at = at;
    row.setAttribute("aria-selected", String(at === this.timeline?.selected));
    return row;
  }

  // --- choosing -------------------------------------------------------------------------------------------------

  /** Selects a record: in the timeline, in the list and for screen readers. */
  select(at) {
    this.timeline.select(at);
    this.on.focus(this);
    if (at < 0) return;
    const place = this.placeOf(at);
    if (place < this.from || place >= this.from + LIST) this.list(place);
    for (const row of this.root.querySelectorAll("tbody tr")) {
      const chosen = row.at === at;
      row.setAttribute("aria-selected", String(chosen));
      if (chosen) row.parentElement.closest(".scroll").scrollTop = row.offsetTop - 120;
    }
    const { trace } = this, number = trace.tables.lanes[trace.lane[at]][0];
    const connection = number === "0" ? "controller" : `connection ${number}`;
    const problem = ["", ", failure", ", does not decode", ", no reply"][trace.mark[at]];
    const what = `${visible(trace.nameOf(at))}, ${trace.sideOf(at)}, ${connection}`;
    say(`Record ${at + 1}: ${what}, at ${duration(Number(trace.since[at]))}${problem}`);
  }

  open(at) {
    this.select(at);
    this.on.open(this, at);
  }

  /** The next record in a direction that matches the filter; `from` itself is not. */
  next(from, step) {
    const place = this.placeOf(Math.max(from, 0)), matches = this.chosen && from >= 0 && this.trace.matches[from];
    const to = from < 0 ? 0 : step < 0 ? place - 1 : !this.chosen || matches ? place + 1 : place;
    return this.shownCount ? this.recordOf(Math.max(Math.min(to, this.shownCount - 1), 0)) : -1;
  }

  nextProblem(step) {
    const { problemsBefore, count } = this.trace, total = problemsBefore[count];
    if (!total) return;
    const at = this.timeline.selected, here = at < 0 ? -1 : problemsBefore[at];
    const wanted = at < 0 ? 0 : step > 0 ? here + (this.trace.mark[at] ? 1 : 0) : here - 1;
    let low = 0, high = count;
    const number = (wanted + total) % total;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (problemsBefore[middle + 1] <= number) low = middle + 1;
      else high = middle;
    }
    this.choose(low);
  }

  /** Selects a record, and shows it if the drawer is open. */
  choose(at) {
    if (at < 0) return;
    if (drawer.hidden) this.select(at);
    else this.open(at);
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
    const { timeline, trace } = this, at = timeline.selected;
    const act = {
      ArrowLeft: () => event.shiftKey ? timeline.pan(-0.15) : this.choose(this.next(at, -1)),
      ArrowRight: () => event.shiftKey ? timeline.pan(0.15) : this.choose(this.next(at, 1)),
      ArrowUp: () => this.neighbour(-1),
      ArrowDown: () => this.neighbour(1),
      Home: () => this.choose(this.shownCount ? this.recordOf(0) : -1),
      End: () => this.choose(this.shownCount ? this.recordOf(this.shownCount - 1) : -1),
      Enter: () => at >= 0 && this.open(at),
      " ": () => at >= 0 && this.open(at),
      "+": () => timeline.zoom(0.6, at >= 0 ? timeline.pos(at) : undefined),
      "=": () => timeline.zoom(0.6, at >= 0 ? timeline.pos(at) : undefined),
      "-": () => timeline.zoom(1.6, at >= 0 ? timeline.pos(at) : undefined),
      0: () => timeline.fit(),
      r: () => at >= 0 && this.choose(trace.replyOf[at] >= 0 ? trace.replyOf[at] : trace.requestOf[at]),
      n: () => this.nextProblem(1),
      p: () => this.nextProblem(-1),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  }

  async filter(text, isCurrent) {
    const matches = text.trim() ? await matching(text, this.trace, isCurrent) : null;
    if (!isCurrent()) return;
    await this.trace.choose(matches);
    this.chosen = matches && new Int32Array(this.trace.chosenBefore[this.trace.count]);
    if (matches) {
      for (let at = 0, place = 0; at < matches.length; at++) if (matches[at]) this.chosen[place++] = at;
    }
    this.timeline.restyled();
    this.list(this.timeline.selected >= 0 ? this.placeOf(this.timeline.selected) : 0);
  }
}

// --- the whole ------------------------------------------------------------------------------------------------------

class Page {
  constructor() {
    this.views = [];
    this.current = null;
    this.filtering = 0;
    this.opening = 0;
  }

  async load() {
    const count = document.querySelectorAll("script[id$='-tables']").length;
    const letters = count > 1 ? Array.from({ length: count }, (_, number) => letterOf(number)) : [""];
    const on = {
      move: (view) => this.moved(view),
      focus: (view) => this.current = view,
      open: (view, at) => this.open(view, at),
    };
    const traces = letters.map((_, number) => new Trace((name) => byId(`${number}-${name}`)?.textContent ?? ""));
    for (const trace of traces) await trace.load();
    byId("loading").remove();
    byId("views").classList.toggle("two", letters.length > 1);
    const found = byId("differences");
    if (found) {
      const bytes = await inflated(await fromBase64(found.textContent));
      this.showDifferences(traces, JSON.parse(new TextDecoder().decode(bytes)));
    }
    for (const [number, trace] of traces.entries()) this.views.push(new View(trace, letters[number], on));
    if (found) {
      for (const [number, view] of this.views.entries()) {
        view.timeline.marked = new Set(this.places.map((each) => each[number]).filter((at) => at >= 0));
      }
    }
    this.current = this.views[0];
    document.title = `segstore: ${traces.map((each) => visible(each.tables.file)).join(" and ")}`;
    const problems = traces.reduce((sum, each) => sum + each.problemsBefore[each.count], 0);
    byId("problem-count").textContent = many(problems, "problem");
    for (const name of ["previous", "next"]) tools.elements[name].disabled = problems === 0;
    byId("together").hidden = letters.length < 2;
    byId("views").setAttribute("aria-busy", "false");
    this.listen();
    this.restore();
  }

  /** Opens the record that the address names, such as #record=12 or #B=12. */
  restore() {
    const [, letter, number] = /^#(record|[A-Z]+)=(\d+)$/.exec(location.hash) ?? [];
    const view = this.views.find((each) => (each.letter || "record") === letter);
    const at = Number(number) - 1;
    if (!view || !(at >= 0 && at < view.trace.count)) return;
    view.timeline.around(at, 10);
    view.open(at);
  }

  moved(view) {
    if (!byId("together").hidden && tools.together.checked && this.moving !== view) {
      for (const other of this.views) {
        const isAlike = other.timeline.from === view.timeline.from && other.timeline.span === view.timeline.span;
        if (other === view || isAlike) continue;
        this.moving = other;
        [other.timeline.from, other.timeline.span] = [view.timeline.from, view.timeline.span];
        other.timeline.changed();
      }
    } else this.moving = null;
  }

  listen() {
    tools.addEventListener("submit", (event) => {
      event.preventDefault();
      clearTimeout(this.typing);
      this.filter(tools.filter.value);
    });
    tools.filter.addEventListener("input", () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.filter(tools.filter.value), 250);
    });
    byId("filter-names").append(...Object.keys(SPEC.filter.names).map((name) => element("option", { value: name })));
    tools.axis.addEventListener("change", () => {
      for (const view of this.views) view.timeline.setOrder(tools.axis.value === "order");
    });
    const each = (act) => () => act((this.current ?? this.views[0]));
    tools.in.addEventListener("click", each((view) => view.timeline.zoom(0.6)));
    tools.out.addEventListener("click", each((view) => view.timeline.zoom(1.6)));
    tools.fit.addEventListener("click", () => this.views.forEach((view) => view.timeline.fit()));
    tools.previous.addEventListener("click", each((view) => view.nextProblem(-1)));
    tools.next.addEventListener("click", each((view) => view.nextProblem(1)));
    tools.help.addEventListener("click", () => byId("keys").showModal());
    matchMedia("(prefers-color-scheme:dark)").addEventListener("change", () => {
      for (const view of this.views) view.timeline.restyled();
    });
    document.addEventListener("keydown", (event) => {
      if (byId("keys").open) return;
      if (event.key === "Escape" && !drawer.hidden) this.closeDrawer();
      const isText = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
      if (isText || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "/") {
        event.preventDefault();
        tools.filter.focus();
      } else if (event.key === "o") {
        tools.axis.value = tools.axis.value === "order" ? "time" : "order";
        tools.axis.dispatchEvent(new Event("change"));
      } else if (event.key === "n" || event.key === "p") {
        const view = this.current ?? this.views[0];
        view.nextProblem(event.key === "n" ? 1 : -1);
      }
    });
    addEventListener("hashchange", () => this.restore());
  }

  async filter(text) {
    const number = ++this.filtering, isCurrent = () => number === this.filtering, note = byId("filter-said");
    let problem = "";
    try {
      for (const view of this.views) await view.filter(text, isCurrent);
    } catch (error) {
      if (!(error instanceof FilterError)) throw error;
      problem = error.message;
    }
    if (!isCurrent()) return;
    tools.filter.setAttribute("aria-invalid", String(problem !== ""));
    note.classList.toggle("problem", problem !== "");
    const counts = this.views.map((view) => {
      const count = `${many(view.shownCount, "record")} of ${view.trace.count.toLocaleString("en")}`;
      return view.letter ? `${view.letter}: ${count}` : count;
    });
    const shortened = this.views.reduce((sum, { trace }) => sum + (text.trim() ? trace.shortened : 0), 0);
    const missing = shortened ? ` Of ${many(shortened, "record")} only a part is on this page.` : "";
    note.textContent = visible(problem) || (text.trim() ? `${counts.join(", ")} match.${missing}` : "");
  }

  // --- the drawer -----------------------------------------------------------------------------------------------

  async open(view, at) {
    const number = ++this.opening;
    await parsed; // the records' bytes are the last part of the page
    const parts = await recordDetails(view, at, (other) => view.open(other));
    if (number !== this.opening) return;
    const close = element("button", { type: "button" }, "Close");
    close.addEventListener("click", () => this.closeDrawer());
    const title = `${view.letter ? `${view.letter}, ` : ""}${at + 1}: ${visible(view.trace.nameOf(at))}`;
    const wasHidden = drawer.hidden;
    const top = element("div", { className: "top" }, element("h2", { id: "drawer-title" }, title), close);
    drawer.replaceChildren(top, ...this.comparison(view, at), ...parts);
    drawer.hidden = false;
    drawer.scrollTop = 0;
    if (wasHidden && document.activeElement?.closest(".list, .differences")) drawer.focus();
    history.replaceState(null, "", `#${view.letter || "record"}=${at + 1}`);
  }

  closeDrawer() {
    drawer.hidden = true;
    this.opening++;
    history.replaceState(null, "", location.pathname + location.search);
    this.current?.canvas.focus({ preventScroll: true });
  }

  // --- differences ----------------------------------------------------------------------------------------------

  /** Lists the differences of two traces. */
  showDifferences(traces, differences) {
    this.differences = differences;
    this.places = differences.map((each) => each.places.map((place) => place - 1));
    const rows = differences.slice(0, 500).map((each, number) => {
      const places = this.places[number], side = places[0] < 0 ? 1 : 0, trace = traces[side];
      const what = `${visible(trace.nameOf(places[side]))}: ${whatDiffers(each)}`;
      const connections = places.map((at, which) => at < 0 ? "" : traces[which].connectionOf(traces[which].lane[at]));
      return [
        link(shown(what), () => this.openDifference(number)),
        each.direction ? "reply" : "request",
        ...places.map((at) => at < 0 ? "" : String(at + 1)),
        Array.from(new Set(connections.filter(Boolean))).join(", "),
      ];
    });
    const ignored = "Times are not compared; ids may differ if each always stands for the same one in the other trace.";
    const count = `${many(differences.length, "stream")} differ${differences.length === 1 ? "s" : ""}`;
    const which = "the first difference of each direction of each connection, and of each method of the controller";
    const said = differences.length ? `${count}: ${which}. ${ignored}` : `The traces have no difference. ${ignored}`;
    const heads = ["Difference", "Direction", "In A", "In B", "Connection"];
    byId("views").append(element("section", { className: "differences", ariaLabel: "Differences" },
      element("h2", null, "Differences"),
      remark(said),
      rows.length ? table(heads, rows) : null,
      differences.length > 500 ? remark("The first 500 are listed.") : null));
  }

  openDifference(number) {
    const [left, right] = this.places[number];
    if (right >= 0) this.views[1].select(right);
    if (left >= 0) this.views[0].open(left);
    else if (right >= 0) this.views[1].open(right);
  }

  /** For a record that differs: its fields in both traces, and a link to its counterpart. */
  comparison(view, at) {
    const side = this.views.indexOf(view), number = (this.places ?? []).findIndex((each) => each[side] === at);
    if (number < 0) return [];
    const { fields } = this.differences[number], other = this.places[number][1 - side];
    const value = (each) => each === null ? "nothing" : shown(typeof each === "string" ? each : JSON.stringify(each));
    const cell = (each) => element("td", { className: "w differs" }, value(each));
    const rows = fields.map((each) => [each.field || "bytes not read", cell(each.left), cell(each.right)]);
    const parts = [element("h3", null, "Difference")];
    if (other < 0) parts.push(element("p", null, `Only ${side ? "B" : "A"} has this record.`));
    if (rows.length) parts.push(table(["Field", "In A", "In B"], rows));
    if (other >= 0) {
      const counterpart = link(`Show it in ${side ? "A" : "B"}`, () => this.views[1 - side].open(other));
      parts.push(element("div", { className: "links" }, counterpart));
    }
    return parts;
  }
}

/** A name for each of several traces: A to Z, then AA. */
function letterOf(number) {
  const last = String.fromCharCode(65 + number % 26);
  return number < 26 ? last : letterOf(Math.floor(number / 26) - 1) + last;
}

/** How two traces differ in a stream, as text. */
function whatDiffers({ fields, places, is_call: isCall, left_over: inA, right_over: inB, more }) {
  if (places[0] && places[1]) {
    const names = fields.map(({ field }) => field || "bytes not read");
    return `${more && `${more}; `}${names.join(", ") || "kind of record"}`;
  }
  if (!isCall) return more;
  const over = places[0] ? inA : inB, side = places[0] ? "A" : "B";
  return `only ${side} has it${over ? `, and ${over.toLocaleString("en")} more of its method` : ""}`;
}

const page = new Page();
page.load().then(() => performance.mark("ready"), (error) => {
  const text = `The trace could not be shown: ${error.message}`;
  byId("views").append(element("p", { className: "problem", role: "alert" }, text));
  throw error;
});

// The timeline: a lane for each connection, drawn on a canvas. Only what is visible is drawn, and where many records
// share a pixel, their number: found by binary search and running counts, so a frame of a million records costs as much
// as one of a thousand.

const LANE = 46, AXIS = 26, REQUEST_Y = 14, REPLY_Y = 34, BAR = 6, DENSE = 2;
const MOST_SINGLE = 500;
const MOST_HEIGHT = 8_000_000;

/** A duration in ns, in the unit that fits. */
function duration(ns) {
  const size = Math.abs(ns);
  for (const [unit, factor] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) {
    if (size >= factor) return `${Number((ns / factor).toPrecision(6))} ${unit}`;
  }
  return `${Math.round(ns)} ns`;
}

class Timeline {
  /** `on.select(at)` is called for a record that is chosen, `on.move()` when the visible range has changed. */
  constructor(trace, root, on) {
    this.trace = trace;
    this.on = on;
    this.scroller = root.querySelector(".lanes");
    this.canvas = this.scroller.querySelector("canvas");
    this.spacer = this.scroller.querySelector(".spacer");
    this.overview = root.querySelector("canvas.overview");
    this.tip = root.querySelector(".tip");
    this.byOrder = false;
    this.selected = -1;
    this.marked = new Set();
    this.gaps = trace.tables.gaps;
    this.fit();
    this.listen();
    new ResizeObserver(() => this.resize()).observe(this.scroller);
    this.resize();
  }

  // --- where things are -----------------------------------------------------------------------------------------

  pos(at) {
    return this.byOrder ? at : this.trace.times[at];
  }

  get first() {
    return this.trace.count ? this.pos(0) : 0;
  }

  get last() {
    return this.trace.count ? this.pos(this.trace.count - 1) : 1;
  }

  get gutter() {
    return this.width < 600 ? 58 : 150;
  }

  x(pos) {
    return this.gutter + (pos - this.from) / this.span * (this.width - this.gutter);
  }

  posAt(x) {
    return this.from + (x - this.gutter) / (this.width - this.gutter) * this.span;
  }

  get lanes() {
    return this.trace.tables.lanes.length;
  }

  /** Pixels of lanes above the visible part. More lanes than an element can be high are scrolled faster. */
  get top() {
    const room = this.spacer.offsetHeight - this.height, whole = this.lanes * LANE + AXIS - this.height;
    return room > 0 && whole > 0 ? this.scroller.scrollTop / room * whole : 0;
  }

  set top(value) {
    const room = this.spacer.offsetHeight - this.height, whole = this.lanes * LANE + AXIS - this.height;
    if (whole > 0) this.scroller.scrollTop = value / whole * room;
  }

  y(lane) {
    return AXIS + lane * LANE - this.top;
  }

  /** The first place from `low` to `high` in `ofLane` whose record is at a position or after it. */
  placeOf(low, high, pos) {
    const { ofLane } = this.trace;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.pos(ofLane[middle]) < pos) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** The first record at a position or after it. */
  recordAt(pos) {
    let low = 0, high = this.trace.count;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.pos(middle) < pos) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // --- moving ---------------------------------------------------------------------------------------------------

  fit() {
    const whole = Math.max(this.last - this.first, 1);
    this.from = this.first - whole * 0.01;
    this.span = whole * 1.02;
    this.changed();
  }

  show(from, span) {
    const whole = Math.max(this.last - this.first, 1), least = this.byOrder ? 2 : 20;
    this.span = Math.min(Math.max(span, least), whole * 1.02);
    const margin = this.span * 0.5, start = this.first - margin, end = this.last + margin - this.span;
    this.from = Math.min(Math.max(from, start), Math.max(end, start));
    this.changed();
  }

  zoom(factor, pos = this.from + this.span / 2) {
    this.show(pos - (pos - this.from) * factor, this.span * factor);
  }

  pan(share) {
    this.show(this.from + this.span * share, this.span);
  }

  /** Shows a record and some of those before and after it. */
  around(at, count) {
    const from = this.pos(Math.max(at - count, 0)), to = this.pos(Math.min(at + count, this.trace.count - 1));
    this.show(from - (to - from) * 0.05, (to - from) * 1.1);
  }

  setOrder(byOrder) {
    const at = this.selected >= 0 ? this.selected
      : Math.min(this.recordAt(this.from + this.span / 2), this.trace.count - 1);
    const count = this.recordAt(this.from + this.span) - this.recordAt(this.from);
    this.byOrder = byOrder;
    if (this.trace.count) this.around(at, Math.max(count >> 1, 1));
    this.overviewStale = true;
  }

  /** Brings a record into view, at least in part. */
  reveal(at) {
    const pos = this.pos(at), y = this.y(this.trace.lane[at]);
    if (pos < this.from || pos > this.from + this.span) this.show(pos - this.span / 2, this.span);
    if (y < AXIS) this.top = this.trace.lane[at] * LANE;
    else if (y + LANE > this.height) this.top = (this.trace.lane[at] + 1) * LANE + AXIS - this.height;
    this.changed();
  }

  select(at) {
    this.selected = at;
    if (at >= 0) this.reveal(at);
    else this.changed();
  }

  changed() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = 0;
      this.draw();
      this.on.move(this);
    });
  }

  restyled() {
    this.overviewStale = true;
    this.changed();
  }

  resize() {
    const width = this.scroller.clientWidth;
    this.spacer.style.height = `${Math.min(this.lanes * LANE + AXIS, MOST_HEIGHT)}px`;
    const height = Math.min(this.lanes * LANE + AXIS, Math.max(Math.round(innerHeight * 0.5), 160));
    this.scroller.style.height = `${height}px`;
    if (!width || (width === this.width && height === this.height)) return;
    [this.width, this.height] = [width, height];
    this.context = sized(this.canvas, width, height);
    this.overviewContext = sized(this.overview, width, 34);
    this.overviewStale = true;
    this.changed();
  }

  // --- drawing --------------------------------------------------------------------------------------------------

  colours() {
    const style = getComputedStyle(document.documentElement), of = (name) => style.getPropertyValue(`--${name}`).trim();
    const names = ["text", "soft", "line", "faint", "box", "bad", "warn", "link", "badbox"];
    const flows = Array.from({ length: 8 }, (_, number) => of(`flow-${number}`));
    return { ...Object.fromEntries(names.map((name) => [name, of(name)])), flows };
  }

  /** The colour of a flow; of a client that numbers requests without flows, of the writer or the connection. */
  colourOf(at, colours) {
    const { flow, writer, lane } = this.trace, number = flow[at] || writer[at] || lane[at] + 1;
    return flow[at] < 0 ? colours.soft : colours.flows[(number - 1) % colours.flows.length];
  }

  draw() {
    const context = this.context;
    if (!context) return;
    const colours = this.colours();
    context.clearRect(0, 0, this.width, this.height);
    context.font = "11.5px system-ui,sans-serif";
    context.textBaseline = "middle";
    const first = Math.max(Math.floor(this.top / LANE), 0);
    const last = Math.min(Math.ceil((this.top + this.height - AXIS) / LANE), this.lanes);
    context.save();
    context.beginPath();
    context.rect(this.gutter, AXIS, this.width - this.gutter, this.height);
    context.clip();
    this.drawGaps(context, colours);
    for (let lane = first; lane < last; lane++) this.drawLane(lane, context, colours);
    context.restore();
    for (let lane = first; lane < last; lane++) this.drawLabel(lane, context, colours);
    this.drawAxis(context, colours);
    this.drawOverview(colours);
  }

  drawLane(lane, context, colours) {
    const { trace } = this, y = this.y(lane);
    context.fillStyle = colours.faint;
    context.fillRect(0, y + LANE - 1, this.width, 1);
    const start = trace.laneStart[lane], end = trace.laneStart[lane + 1];
    const from = this.placeOf(start, end, this.from), to = this.placeOf(from, end, this.from + this.span);
    if (from < to || this.lives(start, end)) {
      context.fillStyle = colours.line;
      const left = Math.max(this.x(this.pos(trace.ofLane[start])), this.gutter);
      const right = this.x(this.pos(trace.ofLane[end - 1]));
      context.fillRect(left, y + (REQUEST_Y + REPLY_Y) / 2, Math.max(Math.min(right, this.width) - left, 1), 1);
    }
    if (to - from > MOST_SINGLE) this.drawDensity(from, to, y, context, colours);
    else this.drawSingle(from, to, start, end, y, context, colours);
    this.drawMarked(lane, y, context, colours);
  }

  /** Whether a lane has records on both sides of the visible range. */
  lives(start, end) {
    const { ofLane } = this.trace;
    return start < end && this.pos(ofLane[start]) < this.from && this.pos(ofLane[end - 1]) > this.from + this.span;
  }

  drawDensity(from, to, y, context, colours) {
    const { trace } = this, middle = y + (REQUEST_Y + REPLY_Y) / 2;
    for (let x = this.gutter, place = from; x < this.width && place < to; x += DENSE) {
      const next = this.placeOf(place, to, this.posAt(x + DENSE)), count = next - place;
      if (count) {
        const replies = trace.replies[next] - trace.replies[place];
        const problems = trace.problems[next] - trace.problems[place];
        context.globalAlpha = trace.matches && trace.chosen[next] === trace.chosen[place] ? 0.15 : 1;
        context.fillStyle = this.colourOf(trace.ofLane[place], colours);
        const up = height(count - replies), down = height(replies);
        context.fillRect(x, middle - 1 - up, DENSE, up);
        context.fillRect(x, middle + 2, DENSE, down);
        if (problems) {
          context.fillStyle = colours.bad;
          context.fillRect(x, y + LANE - 6, DENSE, 4);
        }
      }
      place = next;
    }
    context.globalAlpha = 1;
  }

  drawSingle(from, to, start, end, y, context, colours) {
    const { trace } = this, row = (at) => y + (trace.what[at] & REPLY ? REPLY_Y : REQUEST_Y);
    const alpha = (at) => trace.matches && !trace.matches[at] ? 0.15 : 1;
    context.lineWidth = 1;
    // Arrows first, so that records are on top; also those whose other end is outside.
    const arrow = (request, reply) => {
      const chosen = this.selected === request || this.selected === reply;
      context.globalAlpha = chosen ? 1 : 0.55 * Math.max(alpha(request), alpha(reply));
      context.strokeStyle = context.fillStyle = trace.mark[reply] ? colours.bad : this.colourOf(request, colours);
      context.lineWidth = chosen ? 2 : 1;
      const x0 = this.x(this.pos(request)), x1 = this.x(this.pos(reply));
      const y0 = y + REQUEST_Y + BAR, y1 = y + REPLY_Y - BAR;
      context.beginPath();
      context.moveTo(x0, y0);
      context.lineTo(x1, y1);
      context.stroke();
      const length = Math.hypot(x1 - x0, y1 - y0), [dx, dy] = [(x1 - x0) / length * 5, (y1 - y0) / length * 5];
      context.beginPath();
      context.moveTo(x1, y1);
      context.lineTo(x1 - dx - dy * 0.6, y1 - dy + dx * 0.6);
      context.lineTo(x1 - dx + dy * 0.6, y1 - dy - dx * 0.6);
      context.fill();
    };
    for (let place = from; place < to; place++) {
      const at = trace.ofLane[place];
      if (trace.replyOf[at] >= 0) arrow(at, trace.replyOf[at]);
      else if (trace.requestOf[at] >= 0 && this.pos(trace.requestOf[at]) < this.from) arrow(trace.requestOf[at], at);
    }
    const nextX = [this.width, this.width];
    for (let place = to - 1; place >= from; place--) {
      const at = trace.ofLane[place], x = this.x(this.pos(at));
      const kind = trace.what[at] & KIND, reply = trace.what[at] & REPLY ? 1 : 0;
      context.globalAlpha = alpha(at);
      const colour = context.fillStyle = context.strokeStyle = this.colourOf(at, colours);
      if (kind === OPEN || kind === CLOSE) {
        const bad = kind === CLOSE && reply;
        context.fillStyle = bad ? colours.bad : colours.text;
        context.fillRect(x - 1, y + 6, 2, LANE - 14);
        context.fillRect(kind === OPEN ? x : x - 5, y + 6, 5, 2);
        context.fillRect(kind === OPEN ? x : x - 5, y + LANE - 10, 5, 2);
      } else {
        this.drawRecord(at, x, row(at), colour, context, colours);
        if (trace.endOf[at] >= 0) this.drawBlock(at, x, row(at), context, colours);
      }
      if (at === this.selected) {
        context.globalAlpha = 1;
        context.strokeStyle = colours.text;
        context.lineWidth = 2;
        context.strokeRect(x - 6, row(at) - 10, 12, 20);
      }
      this.drawName(at, x, kind, nextX[reply] - x, y, context, colours);
      if (kind === OPEN || kind === CLOSE) nextX.fill(x);
      else nextX[reply] = x;
    }
    context.globalAlpha = 1;
  }

  drawRecord(at, x, y, colour, context, colours) {
    const mark = this.trace.mark[at];
    if (!mark) {
      context.fillRect(x - 2, y - BAR, 4, 2 * BAR);
      return;
    }
    // Failures are diamonds, malformed ones triangles, requests without a reply empty: not told apart by colour alone.
    context.fillStyle = context.strokeStyle = mark === 1 ? colours.bad : colours.warn;
    context.lineWidth = 1.5;
    context.beginPath();
    if (mark === 3) context.rect(x - 3, y - BAR, 6, 2 * BAR);
    else {
      context.moveTo(x, y - BAR - 1);
      context.lineTo(x + 6, mark === 1 ? y : y + BAR);
      if (mark === 1) context.lineTo(x, y + BAR + 1);
      context.lineTo(x - 6, mark === 1 ? y : y + BAR);
      context.closePath();
      context.fill();
    }
    context.stroke();
  }

  /** An append block up to its end, unfolded into events where there is room. */
  drawBlock(at, x, y, context, colours) {
    const end = this.x(this.pos(this.trace.endOf[at])), events = this.trace.events[this.trace.endOf[at]];
    if (end - x < 4) return;
    context.globalAlpha *= 0.35;
    context.fillRect(x, y - BAR + 1, end - x, 2 * BAR - 2);
    context.globalAlpha = Math.min(context.globalAlpha / 0.35, 1);
    if (events > 1 && (end - x) / events >= 3) {
      context.fillStyle = colours.box;
      for (let event = 1; event < events; event++) {
        const place = x + (end - x) * event / events;
        if (place > this.gutter && place < this.width) context.fillRect(place, y - BAR + 1, 1, 2 * BAR - 2);
      }
    }
  }

  drawName(at, x, kind, room, y, context, colours) {
    if (room < 40) return;
    const name = visible(this.trace.nameOf(at)), reply = this.trace.what[at] & REPLY;
    if (context.measureText(name).width > room - 14) return;
    context.fillStyle = this.trace.mark[at] === 1 ? colours.bad : colours.text;
    const offset = kind === OPEN || kind === CLOSE ? 0 : reply ? 4 : -4;
    context.fillText(name, x + 8, y + (reply ? REPLY_Y : REQUEST_Y) + offset);
  }

  drawMarked(lane, y, context, colours) {
    for (const at of this.marked) {
      if (this.trace.lane[at] !== lane) continue;
      const x = this.x(this.pos(at));
      if (x < this.gutter - 8 || x > this.width + 8) continue;
      context.fillStyle = colours.link;
      context.beginPath();
      context.moveTo(x, y + 9);
      context.lineTo(x - 6, y + 1);
      context.lineTo(x + 6, y + 1);
      context.fill();
    }
  }

  drawGaps(context, colours) {
    for (const [at] of this.gaps) {
      const x = at < this.trace.count ? this.x(this.pos(at)) : this.x(this.last) + 6;
      context.fillStyle = colours.badbox;
      context.fillRect(x - 8, AXIS, 8, this.height);
      context.fillStyle = colours.bad;
      for (let y = AXIS; y < this.height; y += 8) context.fillRect(x - 4, y, 2, 4);
    }
  }

  drawLabel(lane, context, colours) {
    const y = this.y(lane), [number, label] = this.trace.tables.lanes[lane];
    context.fillStyle = colours.box;
    context.fillRect(0, Math.max(y, AXIS), this.gutter - 2, LANE - 1);
    if (y < 0) return;
    context.fillStyle = colours.text;
    const name = number === "0" ? "controller" : `#${number}`;
    context.fillText(fitted(name, this.gutter - 12, context, number !== "0"), 8, y + REQUEST_Y);
    context.fillStyle = colours.soft;
    context.fillText(fitted(visible(label), this.gutter - 12, context), 8, y + REPLY_Y);
  }

  drawAxis(context, colours) {
    context.fillStyle = colours.box;
    context.fillRect(0, 0, this.width, AXIS);
    context.fillStyle = colours.line;
    context.fillRect(0, AXIS - 1, this.width, 1);
    const wanted = Math.max((this.width - this.gutter) / 110, 1);
    const power = 10 ** Math.floor(Math.log10(this.span / wanted));
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => this.span / each <= wanted) ?? power * 10;
    const whole = Math.max(step, 1);
    context.fillStyle = colours.soft;
    for (let tick = Math.ceil(this.from / whole) * whole; tick < this.from + this.span; tick += whole) {
      const x = this.x(tick);
      if (x < this.gutter) continue;
      context.fillRect(x, AXIS - 7, 1, 6);
      const text = this.byOrder ? `${Math.round(tick) + 1}` : tick === 0 ? "0" : duration(tick);
      if (x + 4 + context.measureText(text).width <= this.width) context.fillText(text, x + 4, AXIS / 2);
    }
    context.fillText(this.byOrder ? "record" : "time", 8, AXIS / 2);
  }

  drawOverview(colours) {
    const { trace, overview } = this, context = this.overviewContext, room = this.width;
    const whole = Math.max(this.last - this.first, 1);
    if (this.overviewStale) {
      // Drawn once, and copied: it only changes with the filter, the size and the colours.
      this.picture ??= document.createElement("canvas");
      const copy = sized(this.picture, room, 34);
      for (let x = 0, at = 0; x < room && at < trace.count; x += DENSE) {
        const until = this.first + (x + DENSE) / room * whole;
        const next = x + DENSE >= room ? trace.count : Math.max(this.recordAt(until), at);
        const count = next - at;
        if (count) {
          const chosen = trace.matches ? trace.chosenBefore[next] - trace.chosenBefore[at] : count;
          copy.fillStyle = colours.line;
          copy.fillRect(x, 26 - height(count) * 1.4, DENSE, height(count) * 1.4);
          copy.fillStyle = colours.link;
          if (chosen) copy.fillRect(x, 26 - height(chosen) * 1.4, DENSE, height(chosen) * 1.4);
          copy.fillStyle = colours.bad;
          if (trace.problemsBefore[next] > trace.problemsBefore[at]) copy.fillRect(x, 28, DENSE, 5);
        }
        at = next;
      }
      this.overviewStale = false;
    }
    context.clearRect(0, 0, room, 34);
    context.drawImage(this.picture, 0, 0, room, 34);
    const left = (this.from - this.first) / whole * room, width = Math.max(this.span / whole * room, 3);
    context.strokeStyle = colours.text;
    context.lineWidth = 1.5;
    context.strokeRect(Math.max(left, 1), 1, Math.min(width, room - 2 - Math.max(left, 0)), 32);
    overview.setAttribute("aria-valuetext", this.range());
  }

  /** The visible range, in words. */
  range() {
    const to = this.from + this.span;
    if (this.byOrder) {
      const first = Math.max(Math.round(this.from), 0), last = Math.min(Math.round(to), this.trace.count - 1);
      return `records ${first + 1} to ${last + 1}`;
    }
    return `${duration(Math.max(this.from, 0))} to ${duration(Math.min(to, this.last))}`;
  }

  // --- input ----------------------------------------------------------------------------------------------------

  /** The record nearest to a point, -1 if there is none. */
  near(x, y) {
    const lane = Math.floor((y - AXIS + this.top) / LANE), { trace } = this;
    if (y < AXIS || x < this.gutter || lane < 0 || lane >= this.lanes) return -1;
    const reply = (y - this.y(lane)) > (REQUEST_Y + REPLY_Y) / 2;
    const start = trace.laneStart[lane], end = trace.laneStart[lane + 1];
    const place = this.placeOf(start, end, this.posAt(x));
    let best = -1, least = 14;
    for (let each = Math.max(place - 40, start); each < Math.min(place + 40, end); each++) {
      const at = trace.ofLane[each];
      const far = Math.abs(this.x(this.pos(at)) - x) + (Boolean(trace.what[at] & REPLY) === reply ? 0 : 6);
      if (far < least && (!trace.matches || trace.matches[at])) [best, least] = [at, far];
    }
    return best;
  }

  listen() {
    const { canvas, overview } = this, pointers = new Map();
    const at = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    this.scroller.addEventListener("scroll", () => this.changed(), { passive: true });
    canvas.addEventListener("wheel", (event) => {
      if (event.altKey) return;
      event.preventDefault();
      const [x] = at(event), steps = event.deltaMode ? 30 : 1;
      const isSideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
      if (isSideways) this.pan((event.deltaX || event.deltaY) * steps / this.width);
      else this.zoom(Math.exp(event.deltaY * steps * 0.002), this.posAt(x));
    }, { passive: false });
    let moved = 0;
    canvas.addEventListener("pointerdown", (event) => {
      pointers.set(event.pointerId, event.clientX);
      canvas.setPointerCapture(event.pointerId);
      moved = 0;
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!pointers.has(event.pointerId)) {
        this.hover(...at(event));
        return;
      }
      const before = pointers.get(event.pointerId), shift = event.clientX - before;
      moved += Math.abs(shift);
      const others = [...pointers].filter(([id]) => id !== event.pointerId).map(([, x]) => x);
      pointers.set(event.pointerId, event.clientX);
      if (others.length) this.zoom(Math.abs(before - others[0]) / Math.max(Math.abs(event.clientX - others[0]), 1));
      else if (moved > 3) this.pan(-shift / (this.width - this.gutter));
    });
    const up = (event) => {
      if (pointers.delete(event.pointerId) && moved <= 3 && event.type === "pointerup") {
        const found = this.near(...at(event));
        if (found >= 0) this.on.select(found, this);
      }
    };
    canvas.addEventListener("pointerup", up);
    canvas.addEventListener("pointercancel", up);
    canvas.addEventListener("pointerleave", () => this.tip.hidden = true);
    const jump = (event) => {
      if (!(event.buttons & 1)) return;
      const box = overview.getBoundingClientRect(), whole = this.last - this.first;
      const pos = this.first + (event.clientX - box.left) / box.width * whole;
      this.show(pos - this.span / 2, this.span);
    };
    overview.addEventListener("pointerdown", (event) => {
      overview.setPointerCapture(event.pointerId);
      jump(event);
    });
    overview.addEventListener("pointermove", jump);
  }

  hover(x, y) {
    const found = this.near(x, y);
    this.tip.hidden = found < 0;
    this.canvas.style.cursor = found < 0 ? "grab" : "pointer";
    if (found < 0) return;
    const { trace } = this, names = trace.namesOf(found).map(([name]) => visible(name)).join(", ");
    const request = trace.requestOf[found], since = duration(Number(trace.since[found]));
    const waited = request < 0 ? ""
      : `, ${duration(Number(trace.since[found] - trace.since[request]))} after its request`;
    const name = visible(trace.nameOf(found));
    this.tip.textContent = `${name} ${names}\n${since}${waited}, ${trace.size[found]} bytes`;
    this.tip.style.left = `${Math.max(Math.min(x + 12, this.width - this.tip.offsetWidth - 4), 0)}px`;
    this.tip.style.top = `${this.scroller.offsetTop + y + 16}px`;
  }
}

const height = (count) => count ? Math.min(3 + Math.log2(count) * 1.6, 16) : 0;

/** Makes a canvas as large as it is shown, in the pixels of the screen. */
function sized(canvas, width, tall) {
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(tall * scale);
  canvas.style.height = `${tall}px`;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  return context;
}

/** A text without its end, or its start, if it is wider than that. */
function fitted(text, width, context, keepsEnd = false) {
  if (context.measureText(text).width <= width) return text;
  for (let length = Math.min(text.length, 60); ; length--) {
    const shown = keepsEnd ? `…${text.slice(text.length - length)}` : `${text.slice(0, length)}…`;
    if (!length || context.measureText(shown).width <= width) return shown;
  }
}

/** A text in which what cannot be seen is written out, so that no name looks like another. */
function visible(value) {
  return String(value).replace(/[\p{C}\p{DI}\p{Zl}\p{Zp}]/gu, (each) => `\\u{${each.codePointAt(0).toString(16)}}`);
}

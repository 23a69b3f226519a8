// The timeline: a lane for each connection, drawn on a canvas. Only what is visible is drawn, and where many records
// share a pixel, their number: found by binary search and running counts, so a frame of a million records costs as much
// as one of a thousand.

const LANE = 46, AXIS = 26, REQUEST_Y = 14, REPLY_Y = 34, BAR = 6, DENSE = 2;
const MOST_SINGLE = 500;

function duration(ns) {
  const size = Math.abs(ns);
  for (const [unit, factor] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) {
    if (size >= factor) return `${Number((ns / factor).toPrecision(6))} ${unit}`;
  }
  return `${Math.round(ns)} ns`;
}

class Timeline {
  /** `on.select(at)` is called for a record that is chosen, `on.move()` when the visible range has changed. */
  constructor(trace, stage, ariaLabel, on) {
    Object.assign(this, { trace, on });
    this.canvas = element("canvas", { tabIndex: 0, role: "application", ariaRoleDescription: "timeline", ariaLabel });
    this.spacer = element("div", null, this.canvas);
    this.scroller = element("div", { className: "lanes" }, this.spacer);
    this.overview = element("canvas", { className: "overview", ariaHidden: "true" });
    this.tip = element("div", { className: "tip", hidden: true });
    stage.append(this.overview, this.scroller, this.tip);
    Object.assign(this, { selected: -1, marked: new Set(), lanes: trace.tables.lanes.length });
    this.measure(false);
    this.fit();
    this.listen();
    new ResizeObserver(() => this.resize()).observe(this.scroller);
    this.resize();
  }

  pos(at) {
    return this.byOrder ? at : this.trace.times[at];
  }

  measure(byOrder) {
    const { count } = this.trace;
    this.byOrder = byOrder;
    [this.first, this.last] = count ? [this.pos(0), this.pos(count - 1)] : [0, 1];
    this.whole = Math.max(this.last - this.first, 1);
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

  y(lane) {
    return AXIS + lane * LANE - this.scroller.scrollTop;
  }

  laneAt(y) {
    return Math.floor((y - AXIS + this.scroller.scrollTop) / LANE);
  }

  /** The first place from `low` to `high` in `ofLane` whose record is at a position or after it. */
  placeOf(low, high, pos) {
    return firstPlace(low, high, (place) => this.pos(this.trace.ofLane[place]) >= pos);
  }

  recordAt(pos) {
    return firstPlace(0, this.trace.count, (at) => this.pos(at) >= pos);
  }

  fit() {
    this.from = this.first - this.whole * 0.01;
    this.span = this.whole * 1.02;
    this.changed();
  }

  show(from, span) {
    this.span = Math.min(Math.max(span, this.byOrder ? 2 : 20), this.whole * 1.02);
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

  around(at, count) {
    const from = this.pos(Math.max(at - count, 0)), to = this.pos(Math.min(at + count, this.trace.count - 1));
    this.show(from - (to - from) * 0.05, (to - from) * 1.1);
  }

  setOrder(byOrder) {
    const at = this.selected >= 0 ? this.selected
      : Math.min(this.recordAt(this.from + this.span / 2), this.trace.count - 1);
    const count = this.recordAt(this.from + this.span) - this.recordAt(this.from);
    this.measure(byOrder);
    if (this.trace.count) this.around(at, Math.max(count >> 1, 1));
  }

  /** Marks a record, and brings it into view, at least in part. */
  select(at) {
    this.selected = at;
    const pos = this.pos(at), y = this.y(this.trace.lane[at]);
    if (pos < this.from || pos > this.from + this.span) this.show(pos - this.span / 2, this.span);
    if (y < AXIS) this.scroller.scrollTop -= AXIS - y;
    else if (y + LANE > this.height) this.scroller.scrollTop += y + LANE - this.height;
    this.changed();
  }

  changed() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = 0;
      this.draw();
      this.on.move(this);
    });
  }

  resize() {
    const width = this.scroller.clientWidth;
    const whole = this.lanes * LANE + AXIS, height = Math.min(whole, Math.max(Math.round(innerHeight * 0.5), 160));
    this.spacer.style.height = `${whole}px`;
    this.scroller.style.height = `${height}px`;
    if (!width || (width === this.width && height === this.height)) return;
    [this.width, this.height] = [width, height];
    this.context = sized(this.canvas, width, height);
    this.overviewContext = sized(this.overview, width, 34);
    this.changed();
  }

  /** The name of a flow's colour; without flows, of the colour of the writer or the connection. */
  colourOf(at) {
    const { flow, writer, lane } = this.trace, index = flow[at] || writer[at] || lane[at] + 1;
    return flow[at] < 0 ? "soft" : `flow-${(index - 1) % 8}`;
  }

  bar(name, x, y, width, height, context = this.context) {
    context.fillStyle = this.colour(name);
    context.fillRect(x, y, width, height);
  }

  shape(name, [start, ...corners]) {
    const { context } = this;
    context.fillStyle = this.colour(name);
    context.beginPath();
    context.moveTo(...start);
    for (const corner of corners) context.lineTo(...corner);
    context.fill();
  }

  draw() {
    const { context, gutter, width, height } = this;
    if (!context) return;
    const style = getComputedStyle(document.documentElement);
    this.colour = (name) => style.getPropertyValue(`--${name}`);
    const last = Math.min(this.laneAt(height) + 1, this.lanes);
    context.clearRect(0, 0, width, height);
    context.font = "11.5px system-ui,sans-serif";
    context.textBaseline = "middle";
    context.save();
    context.beginPath();
    context.rect(gutter, AXIS, width - gutter, height);
    context.clip();
    for (const [at] of this.trace.tables.gaps) {  // what could not be read
      const x = at < this.trace.count ? this.x(this.pos(at)) : this.x(this.last) + 6;
      this.bar("badbox", x - 8, AXIS, 8, height);
      for (let y = AXIS; y < height; y += 8) this.bar("bad", x - 4, y, 2, 4);
    }
    for (let lane = this.laneAt(AXIS); lane < last; lane++) this.drawLane(lane);
    context.restore();
    for (let lane = this.laneAt(AXIS); lane < last; lane++) this.drawLabel(lane);
    this.drawAxis();
    this.drawOverview();
  }

  drawLane(lane) {
    const { trace } = this, y = this.y(lane), middle = y + (REQUEST_Y + REPLY_Y) / 2;
    const start = trace.laneStart[lane], end = trace.laneStart[lane + 1];
    const from = this.placeOf(start, end, this.from), to = this.placeOf(from, end, this.from + this.span);
    this.bar("faint", 0, y + LANE - 1, this.width, 1);
    if (from < to || (start < from && to < end)) {  // it lives in the visible range, or around it
      const left = Math.max(this.x(this.pos(trace.ofLane[start])), this.gutter);
      const right = Math.min(this.x(this.pos(trace.ofLane[end - 1])), this.width);
      this.bar("line", left, middle, Math.max(right - left, 1), 1);
    }
    if (to - from > MOST_SINGLE) this.drawDensity(from, to, y, middle);
    else this.drawSingle(from, to, y);
    for (const at of this.marked) {
      const x = this.x(this.pos(at));
      if (trace.lane[at] === lane) this.shape("link", [[x, y + 9], [x - 6, y + 1], [x + 6, y + 1]]);
    }
  }

  drawDensity(from, to, y, middle) {
    const { trace, context } = this;
    for (let x = this.gutter, place = from; x < this.width && place < to; x += DENSE) {
      const next = this.placeOf(place, to, this.posAt(x + DENSE)), replies = trace.replies[next] - trace.replies[place];
      const up = heightOf(next - place - replies), colour = this.colourOf(trace.ofLane[place]);
      context.globalAlpha = trace.matches && trace.chosen[next] === trace.chosen[place] ? 0.15 : 1;
      this.bar(colour, x, middle - 1 - up, DENSE, up);
      this.bar(colour, x, middle + 2, DENSE, heightOf(replies));
      if (trace.problems[next] > trace.problems[place]) this.bar("bad", x, y + LANE - 6, DENSE, 4);
      place = next;
    }
    context.globalAlpha = 1;
  }

  drawSingle(from, to, y) {
    const { trace, context } = this, nextX = [this.width, this.width];
    const alpha = (at) => trace.matches && !trace.matches[at] ? 0.15 : 1;
    // Arrows first, so that records are on top; also those whose other end is outside.
    for (let place = from; place < to; place++) {
      const at = trace.ofLane[place], reply = trace.replyOf[at], request = trace.requestOf[at];
      const ends = reply >= 0 ? [at, reply] : request >= 0 && this.pos(request) < this.from ? [request, at] : null;
      if (ends) this.drawArrow(...ends, y, 0.55 * Math.max(...ends.map(alpha)));
    }
    for (let place = to - 1; place >= from; place--) {
      const at = trace.ofLane[place], x = this.x(this.pos(at)), kind = trace.what[at] & KIND;
      const reply = trace.what[at] & REPLY ? 1 : 0, middle = y + (reply ? REPLY_Y : REQUEST_Y);
      const isBroken = trace.verdicts.has(at);
      context.globalAlpha = alpha(at);
      if (isBroken) this.bar("badbox", x - 9, middle - 12, 18, 24);
      if (kind === OPEN || kind === CLOSE) {
        const colour = kind === CLOSE && reply ? "bad" : "text", left = kind === OPEN ? x : x - 5;
        this.bar(colour, x - 1, y + 6, 2, LANE - 14);
        this.bar(colour, left, y + 6, 5, 2);
        this.bar(colour, left, y + LANE - 10, 5, 2);
      } else this.drawRecord(at, x, middle);
      if (at === this.selected) {
        context.globalAlpha = 1;
        context.strokeStyle = this.colour("text");
        context.lineWidth = 2;
        context.strokeRect(x - 6, middle - 10, 12, 20);
      }
      const isEvent = kind === OPEN || kind === CLOSE, name = plain(trace.nameOf(at)), room = nextX[reply] - x;
      if (room >= 40 && context.measureText(name).width <= room - 14) {
        context.fillStyle = this.colour(trace.mark[at] === 1 || isBroken ? "bad" : "text");
        context.fillText(name, x + 8, middle + (isEvent ? 0 : reply ? 4 : -4));
      }
      context.fillStyle = this.colour("bad");
      if (isBroken) context.fillText("‼", x - 5, y + LANE / 2 + 1);
      if (isEvent) nextX.fill(x);
      else nextX[reply] = x;
    }
    context.globalAlpha = 1;
  }

  drawArrow(request, reply, y, alpha) {
    const { context } = this, isChosen = this.selected === request || this.selected === reply;
    const x0 = this.x(this.pos(request)), x1 = this.x(this.pos(reply));
    const y0 = y + REQUEST_Y + BAR, y1 = y + REPLY_Y - BAR, length = Math.hypot(x1 - x0, y1 - y0);
    const dx = (x1 - x0) / length * 5, dy = (y1 - y0) / length * 5;
    const colour = this.trace.mark[reply] ? "bad" : this.colourOf(request);
    context.globalAlpha = isChosen ? 1 : alpha;
    context.strokeStyle = this.colour(colour);
    context.lineWidth = isChosen ? 2 : 1;
    context.beginPath();
    context.moveTo(x0, y0);
    context.lineTo(x1, y1);
    context.stroke();
    this.shape(colour, [[x1, y1], [x1 - dx - dy * 0.6, y1 - dy + dx * 0.6], [x1 - dx + dy * 0.6, y1 - dy - dx * 0.6]]);
  }

  /** Failures are diamonds, malformed frames triangles, requests without a reply empty: not of another colour alone. */
  drawRecord(at, x, y) {
    const { trace, context } = this, top = [x, y - BAR - 1];
    const colour = this.colourOf(at), end = trace.endOf[at], alpha = context.globalAlpha;
    if (trace.mark[at] === 1) this.shape("bad", [top, [x + 7, y], [x, y + BAR + 1], [x - 7, y]]);
    else if (trace.mark[at] === 2) this.shape("warn", [top, [x + 6, y + BAR], [x - 6, y + BAR]]);
    else if (trace.mark[at] === 3) {
      context.strokeStyle = this.colour("warn");
      context.lineWidth = 1.5;
      context.strokeRect(x - 3, y - BAR, 6, 2 * BAR);
    } else this.bar(colour, x - 2, y - BAR, 4, 2 * BAR);
    if (end < 0) return;
    // An append block extends to its end, unfolded into events where there is room.
    const wide = this.x(this.pos(end)) - x, events = trace.events[end];
    context.globalAlpha = 0.35 * alpha;
    this.bar(colour, x, y - BAR + 1, wide, 2 * BAR - 2);
    context.globalAlpha = alpha;
    if (wide / events < 3) return;
    for (let event = 1; event < events; event++) {
      this.bar("box", x + wide * event / events, y - BAR + 1, 1, 2 * BAR - 2);
    }
  }

  drawLabel(lane) {
    const { context, gutter } = this, y = this.y(lane), [connection, label] = this.trace.tables.lanes[lane];
    this.bar("box", 0, Math.max(y, AXIS), gutter - 2, LANE - 1);
    if (y < 0) return;
    const isCalls = connection === "0", name = isCalls ? "controller" : `#${connection}`;
    context.fillStyle = this.colour("text");
    context.fillText(cutOff(name, gutter - 12, context, !isCalls), 8, y + REQUEST_Y);
    context.fillStyle = this.colour("soft");
    context.fillText(cutOff(plain(label), gutter - 12, context), 8, y + REPLY_Y);
  }

  drawAxis() {
    const { context } = this, wanted = Math.max((this.width - this.gutter) / 110, 1);
    this.bar("box", 0, 0, this.width, AXIS);
    this.bar("line", 0, AXIS - 1, this.width, 1);
    const power = 10 ** Math.floor(Math.log10(this.span / wanted));
    const steps = [1, 2, 5, 10].map((part) => part * power);
    const step = Math.max(steps.find((part) => this.span / part <= wanted) ?? steps.at(-1), 1);
    context.fillStyle = this.colour("soft");
    for (let tick = Math.ceil(this.from / step) * step; tick < this.from + this.span; tick += step) {
      const x = this.x(tick);
      if (x < this.gutter) continue;
      context.fillRect(x, AXIS - 7, 1, 6);
      const text = this.byOrder ? `${Math.round(tick) + 1}` : tick === 0 ? "0" : duration(tick);
      if (x + 4 + context.measureText(text).width <= this.width) context.fillText(text, x + 4, AXIS / 2);
    }
    context.fillText(this.byOrder ? "record" : "time", 8, AXIS / 2);
  }

  drawOverview() {
    const { trace, overviewContext: context, width: room, whole } = this;
    context.clearRect(0, 0, room, 34);
    for (let x = 0, at = 0; x < room && at < trace.count; x += DENSE) {
      const next = Math.max(this.recordAt(this.first + (x + DENSE) / room * whole), at);
      const chosen = trace.matches ? trace.chosenBefore[next] - trace.chosenBefore[at] : next - at;
      for (const [colour, count] of [["line", next - at], ["link", chosen]]) {
        this.bar(colour, x, 26 - heightOf(count) * 1.4, DENSE, heightOf(count) * 1.4, context);
      }
      if (trace.problemsBefore[next] > trace.problemsBefore[at]) this.bar("bad", x, 28, DENSE, 5, context);
      at = next;
    }
    const left = Math.max((this.from - this.first) / whole * room, 1), width = Math.max(this.span / whole * room, 3);
    context.strokeStyle = this.colour("text");
    context.lineWidth = 1.5;
    context.strokeRect(left, 1, Math.min(width, room - 1 - left), 32);
  }

  /** The record nearest to a point, -1 if there is none. */
  near(x, y) {
    const lane = this.laneAt(y), { trace } = this, isReply = y - this.y(lane) > (REQUEST_Y + REPLY_Y) / 2;
    if (y < AXIS || x < this.gutter || lane >= this.lanes) return -1;
    const start = trace.laneStart[lane], end = trace.laneStart[lane + 1];
    const middle = this.placeOf(start, end, this.posAt(x));
    let best = -1, least = 14;
    for (const at of trace.ofLane.subarray(Math.max(middle - 40, start), Math.min(middle + 40, end))) {
      const far = Math.abs(this.x(this.pos(at)) - x) + (Boolean(trace.what[at] & REPLY) === isReply ? 0 : 6);
      if (far < least && (!trace.matches || trace.matches[at])) [best, least] = [at, far];
    }
    return best;
  }

  listen() {
    const { canvas, overview } = this, pointers = new Map();
    let moved = 0;
    const on = (name, act) => canvas.addEventListener(name, act, { passive: false });
    this.scroller.addEventListener("scroll", () => this.changed(), { passive: true });
    on("wheel", (event) => {
      if (event.altKey) return;
      event.preventDefault();
      const steps = event.deltaMode ? 30 : 1, isSideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
      if (event.shiftKey || isSideways) this.pan((event.deltaX || event.deltaY) * steps / this.width);
      else this.zoom(Math.exp(event.deltaY * steps * 0.002), this.posAt(event.offsetX));
    });
    on("pointerdown", (event) => {
      pointers.set(event.pointerId, event.clientX);
      canvas.setPointerCapture(event.pointerId);
      moved = 0;
    });
    on("pointermove", (event) => {
      const before = pointers.get(event.pointerId), here = event.clientX;
      if (before === undefined) return this.hover(event.offsetX, event.offsetY);
      const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];  // two fingers zoom
      moved += Math.abs(here - before);
      pointers.set(event.pointerId, here);
      if (other !== undefined) this.zoom(Math.abs(before - other) / Math.max(Math.abs(here - other), 1));
      else if (moved > 3) this.pan((before - here) / (this.width - this.gutter));
      return undefined;
    });
    on("pointerup", (event) => {
      const at = pointers.delete(event.pointerId) && moved <= 3 ? this.near(event.offsetX, event.offsetY) : -1;
      if (at >= 0) this.on.select(at);
    });
    on("pointercancel", (event) => pointers.delete(event.pointerId));
    on("pointerleave", () => { this.tip.hidden = true; });
    const jump = (event) => {
      if (!(event.buttons & 1)) return;
      overview.setPointerCapture(event.pointerId);
      this.show(this.first + event.offsetX / overview.clientWidth * this.whole - this.span / 2, this.span);
    };
    for (const name of ["pointerdown", "pointermove"]) overview.addEventListener(name, jump);
  }

  hover(x, y) {
    const { trace, tip } = this, at = this.near(x, y);
    tip.hidden = at < 0;
    this.canvas.style.cursor = at < 0 ? "grab" : "pointer";
    if (at < 0) return;
    const names = trace.namesOf(at).map(([name]) => plain(name)).join(", "), latency = trace.latencyOf(at);
    const since = duration(Number(trace.since[at])), waited = latency && `, ${latency} after its request`;
    tip.textContent = `${plain(trace.nameOf(at))} ${names}\n${since}${waited}, ${many(trace.size[at], "byte")}`;
    if (trace.problemOf(at)) tip.append(`\n${trace.problemOf(at)}`);
    tip.style.left = `${Math.max(Math.min(x + 12, this.width - tip.offsetWidth - 4), 0)}px`;
    tip.style.top = `${this.scroller.offsetTop + y + 16}px`;
  }
}

const heightOf = (count) => count ? Math.min(3 + Math.log2(count) * 1.6, 16) : 0;

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
function cutOff(text, width, context, keepsEnd = false) {
  let shown = text;
  for (let length = Math.min(text.length, 60); length >= 0 && context.measureText(shown).width > width; length--) {
    shown = keepsEnd ? `…${text.slice(text.length - length)}` : `${text.slice(0, length)}…`;
  }
  return shown;
}

// Reads a packed trace: columns of numbers, one per record, and blocks of bytes that are unpacked when they are shown.
// The counterpart of segstore/view/pack.py.

const KIND = 7, REPLY = 8, MALFORMED = 16, HAS_ID = 32, HAS_CODE = 64, GIVEN_UP = 128;
const FRAME = 0, OPEN = 1, CLOSE = 2;
const KINDS = ["frame", "open", "close", "bytes", "call"];
const MARKS = [["", "", ""], ["failure", "✗ ", "bad"], ["does not decode", "⚠ ", "warn"],
  ["no reply before its connection ended", "☐ ", "warn"]];  // by the number of a mark

/** The first place from `low` to `high` for which `isAfter` holds; `high` if there is none. */
function firstPlace(low, high, isAfter) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (isAfter(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** The text of a section in base64, unpacked. */
async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (byte) => byte.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
const parsed = async (text) => JSON.parse(new TextDecoder().decode(await unpacked(text)));

/** Gathers the planes of a column (see pack.py) in an array of 4-byte numbers; `words` of them make one number. */
function gathered(raw, count, words) {
  const found = new Int32Array(count * words);
  for (let plane = 0; plane * count < raw.length; plane++) {
    const shift = plane % 4 * 8, word = plane >> 2, base = plane * count;
    for (let at = 0; at < count; at++) found[at * words + word] |= raw[base + at] << shift;
  }
  return found;
}

/** One trace. `section(name)` gives the text of a section. */
class Trace {
  constructor(section) {
    this.section = section;
    this.blocks = new Map();
    this.payloads = [];  // of the record that a filter looks at
    this.shortened = 0;  // the records of which the last filter saw a part
  }

  async load() {
    this.tables = await parsed(this.section("tables"));
    const count = this.count = this.tables.count;
    this.verdicts = new Map();  // by the records that they name
    for (const verdict of Object.values(this.tables.broken).flatMap(({ verdicts }) => verdicts)) {
      for (const at of verdict.records) this.verdicts.set(at, [...this.verdictsOf(at), verdict]);
    }
    const column = async (name, words = 1) => gathered(await unpacked(this.section(name)), count, words);
    for (const name of ["what", "mark"]) this[name] = await unpacked(this.section(name));
    this.since = new BigInt64Array((await column("ts", 2)).buffer);
    this.start = BigInt(this.tables.start_ns);
    const columns = ["lane", "size", "code", "events", "segments", "writer", "call"];
    for (const name of columns) this[name] = await column(name);
    this.ids = await column("request_id", 2);
    this.requestId = new BigInt64Array(this.ids.buffer);
    this.place();
    this.sortByLane();
    this.link(await column("reply"), await column("block"));
    this.choose(null);
  }

  /** Where records are drawn: ns since the start, never before the record that precedes. */
  place() {
    this.times = new Float64Array(this.count);
    for (let at = 0, last = 0; at < this.count; at++) {
      if (at) this.since[at] += this.since[at - 1];
      this.times[at] = last = Math.max(Number(this.since[at]), last);
    }
  }

  /** The records of each lane: those of lane L are `ofLane[laneStart[L]]` up to `ofLane[laneStart[L + 1]]`. */
  sortByLane() {
    const lanes = this.tables.lanes.length, start = this.laneStart = new Int32Array(lanes + 1);
    this.ofLane = new Int32Array(this.count);
    for (const lane of this.lane) start[lane + 1]++;
    for (let lane = 0; lane < lanes; lane++) start[lane + 1] += start[lane];
    const next = start.slice();
    for (let at = 0; at < this.count; at++) this.ofLane[next[this.lane[at]]++] = at;
  }

  /** Links requests and replies, blocks and their ends; counts by lane what density is drawn of. */
  link(reply, block) {
    const links = ["replyOf", "requestOf", "endOf", "blockOf", "flow"];
    for (const name of links) this[name] = new Int32Array(this.count).fill(-1);
    for (let at = 0; at < this.count; at++) {
      if (reply[at]) {
        this.replyOf[at] = at + reply[at];
        if (this.requestOf[this.replyOf[at]] < 0) this.requestOf[this.replyOf[at]] = at;
      }
      if (this.what[at] & HAS_ID) this.flow[at] = this.ids[2 * at + 1];
      if (block[at]) {
        this.blockOf[at] = at - block[at];
        this.endOf[at - block[at]] = at;
        this.flow[at - block[at]] = this.flow[at];
      }
    }
    const isMarked = (at) => this.mark[at] !== 0 || this.verdicts.has(at);
    this.problems = this.runningCount(isMarked);
    this.problemsBefore = this.runningCount(isMarked, false);
    this.replies = this.runningCount((at) => (this.what[at] & REPLY) !== 0);
  }

  callOf(at) {
    return this.call[at] ? this.tables.calls[this.call[at] - 1] : null;
  }

  verdictsOf(at) {
    return this.verdicts.get(at) ?? [];
  }

  /** The meaning of a record's mark, and the rules whose verdicts name it, with their sentences; "" if it has none. */
  problemOf(at) {
    const broken = this.verdictsOf(at).map(({ rule }) => `‼ ${rule}: ${this.tables.broken[rule].sentence}`);
    return [MARKS[this.mark[at]][0], ...new Set(broken)].filter(Boolean).join(", ");
  }

  /** How many of the records before each place have a property: of lanes one after another, or of the trace. */
  runningCount(has, byLane = true) {
    const found = new Int32Array(this.count + 1);
    for (let place = 0; place < this.count; place++) {
      found[place + 1] = found[place] + (has(byLane ? this.ofLane[place] : place) ? 1 : 0);
    }
    return found;
  }

  /** Keeps the result of a filter: 1 for each record that matches; null shows all. */
  choose(matches) {
    const has = (at) => matches[at] !== 0;
    this.matches = matches;
    this.chosen = matches && this.runningCount(has);
    this.chosenBefore = matches && this.runningCount(has, false);
  }

  typeName(at) {
    return this.what[at] & HAS_CODE ? SPEC.commands[this.code[at]]?.name ?? SPEC.unknown : null;
  }

  /** The connection of a lane as text; that of controller calls has no number. */
  connectionOf(lane) {
    const [connection] = this.tables.lanes[lane];
    return connection === "0" ? "controller" : connection;
  }

  nameOf(at) {
    const kind = KINDS[this.what[at] & KIND], name = this.typeName(at);
    if (kind === "call") return this.callOf(at)?.rpc ?? "call, not read";
    if (kind === "bytes") return "bytes that are no frame";
    if (kind !== "frame") return kind === "open" ? "opened" : "closed";
    return name === SPEC.unknown ? `${name} ${this.code[at]}` : name ?? "no header";
  }

  sideOf(at) {
    const isReply = this.what[at] & REPLY, kind = this.what[at] & KIND;
    if (kind === OPEN || kind === CLOSE) return isReply ? "by the store" : "by the client";
    return isReply ? "reply" : "request";
  }

  /** The segments of a record: [name, scope, stream]. */
  namesOf(at) {
    return this.tables.sets[this.segments[at]].map((name) => this.tables.names[name]);
  }

  /** How long after its request a reply came; "" of others. */
  latencyOf(at) {
    const request = this.requestOf[at];
    return request < 0 ? "" : duration(Number(this.since[at] - this.since[request]));
  }

  /** The bytes of a record that the page has: its first `head` bytes, and its last ones if there is a gap. */
  async dataOf(at) {
    const { block: records, head, tail } = this.tables, block = Math.floor(at / records);
    const kept = (record) => this.size[record] <= head + tail ? this.size[record] : head + tail;
    if (!this.blocks.has(block)) {
      if (this.blocks.size > 20) this.blocks.delete(this.blocks.keys().next().value);
      const bytes = await unpacked(this.section(`bytes-${block}`)), starts = [0];
      for (let record = block * records; starts.length <= records; record++) starts.push(starts.at(-1) + kept(record));
      this.blocks.set(block, [bytes, starts]);
    }
    const [bytes, starts] = this.blocks.get(block), start = starts[at % records];
    return new Bytes(bytes.subarray(start, start + kept(at)), this.size[at], head);
  }

  /** What replies say of segments, writers and transactions: [kind, name, segment of a writer, {fact: changes}]. */
  async states() {
    return this.known ??= await parsed(this.section("states"));
  }
}

/** Bytes of which those between `head` and `tail` may be missing; they are then zeros. */
class Bytes {
  constructor(kept, size, head) {
    const isWhole = kept.length === size, all = isWhole ? kept : new Uint8Array(size), tail = size - kept.length + head;
    if (!isWhole) {
      all.set(kept.subarray(0, head));
      all.set(kept.subarray(head), tail);
    }
    Object.assign(this, { all, size, head: isWhole ? size : head, tail: isWhole ? size : tail });
    this.view = new DataView(all.buffer, all.byteOffset, size);
  }

  has(at, length) {
    return at + length <= this.head || at >= this.tail || length === 0;
  }

  /** Those of `length` bytes that are there, up to the first that is missing. */
  slice(at, length) {
    return this.all.subarray(at, this.has(at, length) ? at + length : Math.max(this.head, at));
  }
}

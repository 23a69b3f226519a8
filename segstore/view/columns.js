// Reads a packed trace: columns of numbers, one per record, and blocks of bytes that are unpacked when they are shown.
// The counterpart of pack.py. Long work runs in slices, so that the page stays responsive.

const SLICE_MS = 12;
const KIND = 7, REPLY = 8, MALFORMED = 16, HAS_ID = 32, HAS_CODE = 64, GIVEN_UP = 128;
const FRAME = 0, OPEN = 1, CLOSE = 2, BYTES = 3, CALL = 4;
const KINDS = ["frame", "open", "close", "bytes", "call"];

/** Lets the browser draw and handle input. */
const pause = () => new Promise((resolve) => setTimeout(resolve));

/** Runs `body(from, to)` over 0 to `count` in steps, and pauses before it has run for too long. */
async function inSlices(count, step, body) {
  let since = performance.now();
  for (let from = 0; from < count; from += step) {
    body(from, Math.min(from + step, count));
    if (performance.now() - since > SLICE_MS) {
      await pause();
      since = performance.now();
    }
  }
}

/** The text of a section in base64, as bytes. */
async function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const padding = text.endsWith("==") ? 2 : text.endsWith("=") ? 1 : 0;
  const bytes = new Uint8Array(Math.floor(text.length * 3 / 4) - padding);
  await inSlices(text.length, 1 << 18, (from, to) => {
    const part = atob(text.slice(from, to));
    for (let at = 0, place = from / 4 * 3; at < part.length; at++) bytes[place + at] = part.charCodeAt(at);
  });
  return bytes;
}

async function inflated(packed) {
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Gathers the planes of a column (see pack.py) in an array of 4-byte numbers; `words` of them make one number. */
async function gathered(raw, count, words) {
  const planes = count ? raw.length / count : 0;
  const found = new Int32Array(count * words);
  await inSlices(count, 1 << 16, (from, to) => {
    for (let plane = 0; plane < planes; plane++) {
      const shift = plane % 4 * 8, word = plane >> 2, base = plane * count;
      for (let at = from; at < to; at++) found[at * words + word] |= raw[base + at] << shift;
    }
  });
  return found;
}

/** Turns differences into 64-bit sums, in place: low and high half by turns. */
async function summed(halves) {
  let low = 0, high = 0;
  await inSlices(halves.length / 2, 1 << 16, (from, to) => {
    for (let at = 2 * from; at < 2 * to; at += 2) {
      const before = low >>> 0;
      low = (low + halves[at]) | 0;
      high = (high + halves[at + 1] + ((low >>> 0) < before ? 1 : 0)) | 0;
      halves[at] = low;
      halves[at + 1] = high;
    }
  });
  return halves;
}

/** One trace. `section(name)` gives the text of a section, "" if there is none. */
class Trace {
  constructor(section) {
    this.section = section;
    this.blocks = new Map();
    this.last = -1; // the record whose bytes were read last
    this.lastStart = 0; // where they start in its block
  }

  async bytesOf(name) {
    return inflated(await fromBase64(this.section(name)));
  }

  async load() {
    this.tables = JSON.parse(new TextDecoder().decode(await this.bytesOf("tables")));
    const count = this.count = this.tables.count;
    this.what = await this.bytesOf("what");
    const wide = async (name, length = count) => gathered(await this.bytesOf(name), length, 2);
    const narrow = async (name, length = count) => gathered(await this.bytesOf(name), length, 1);
    const ts = await summed(await wide("ts"));
    this.start = BigInt(this.tables.start_ns);
    this.since = new BigInt64Array(ts.buffer);
    this.lane = await narrow("lane");
    await this.place(ts);
    await this.sortByLane();
    this.size = await narrow("size");
    this.code = await narrow("code");
    this.ids = await wide("request_id");
    this.requestId = new BigInt64Array(this.ids.buffer);
    const reply = await narrow("reply");
    const block = await narrow("block");
    this.events = await narrow("events");
    this.segments = await narrow("segments");
    this.writer = await narrow("writer");
    this.call = await narrow("call");
    await this.link(reply, block);
    this.matches = null;
    this.payloads = []; // of the record that a filter looks at
    this.shortened = 0; // the records of which the last filter saw a part
    this.changes = null;
  }

  /** Where records are drawn: ns since the start, never before the record that precedes. */
  async place(ts) {
    const times = this.times = new Float64Array(this.count);
    let last = 0;
    this.backwards = 0;
    await inSlices(this.count, 1 << 16, (from, to) => {
      for (let at = from; at < to; at++) {
        const here = ts[2 * at + 1] * 4294967296 + (ts[2 * at] >>> 0);
        if (here < last) this.backwards++;
        else last = here;
        times[at] = last;
      }
    });
  }

  /** The records of each lane: those of lane L are `ofLane[laneStart[L]]` up to `ofLane[laneStart[L + 1]]`. */
  async sortByLane() {
    const lanes = this.tables.lanes.length;
    const start = this.laneStart = new Int32Array(lanes + 1);
    const of = this.ofLane = new Int32Array(this.count);
    await inSlices(this.count, 1 << 16, (from, to) => {
      for (let at = from; at < to; at++) start[this.lane[at] + 1]++;
    });
    for (let lane = 0; lane < lanes; lane++) start[lane + 1] += start[lane];
    const next = start.slice();
    await inSlices(this.count, 1 << 16, (from, to) => {
      for (let at = from; at < to; at++) of[next[this.lane[at]]++] = at;
    });
  }

  /** Links requests and replies, blocks and their ends; finds what failed; counts by lane what density is drawn of. */
  async link(reply, block) {
    const { count, what, code, lane } = this;
    const replyOf = this.replyOf = new Int32Array(count).fill(-1);
    const requestOf = this.requestOf = new Int32Array(count).fill(-1);
    const endOf = this.endOf = new Int32Array(count).fill(-1);
    const blockOf = this.blockOf = new Int32Array(count).fill(-1);
    const mark = this.mark = new Uint8Array(count);
    const flow = this.flow = new Int32Array(count).fill(-1);
    await inSlices(count, 1 << 14, (from, to) => {
      for (let at = from; at < to; at++) {
        if (reply[at]) {
          replyOf[at] = at + reply[at];
          if (requestOf[replyOf[at]] < 0) requestOf[replyOf[at]] = at;
        }
        if (what[at] & HAS_ID) flow[at] = this.ids[2 * at + 1];
        if (block[at]) {
          blockOf[at] = at - block[at];
          endOf[at - block[at]] = at;
          flow[at - block[at]] = flow[at];
        }
        mark[at] = this.failureOf(at) ? 1 : what[at] & MALFORMED ? 2 : 0;
      }
    });
    // Requests that were still waiting when their connection ended.
    const closed = new Int32Array(this.tables.lanes.length).fill(-1);
    for (let at = count - 1; at >= 0; at--) {
      if ((what[at] & KIND) === CLOSE) closed[lane[at]] = Math.max(closed[lane[at]], at);
    }
    await inSlices(count, 1 << 15, (from, to) => {
      for (let at = from; at < to; at++) {
        if (!mark[at] && replyOf[at] < 0 && closed[lane[at]] > at && this.isAnswered(at)) mark[at] = 3;
      }
    });
    this.problems = await this.runningCount((at) => mark[at] !== 0);
    this.problemsBefore = await this.runningCount((at) => mark[at] !== 0, null);
    this.replies = await this.runningCount((at) => (what[at] & REPLY) !== 0);
  }

  /** Whether the record is a request that a reply is due for. */
  isAnswered(at) {
    const what = this.what[at];
    if (what & (REPLY | MALFORMED | GIVEN_UP)) return false;
    if ((what & KIND) === CALL) return true;
    const command = (what & HAS_CODE) && SPEC.commands[this.code[at]];
    return Boolean(command && (command.request || command.name === "APPEND_BLOCK_END"));
  }

  failureOf(at) {
    if ((this.what[at] & KIND) === CALL) return Boolean(this.call[at] && this.tables.calls[this.call[at] - 1].failure);
    return Boolean((this.what[at] & HAS_CODE) && SPEC.commands[this.code[at]]?.failure);
  }

  /** How many of the records before each place of an order have a property; null is the order of the trace. */
  async runningCount(has, order = this.ofLane) {
    const found = new Int32Array(this.count + 1);
    await inSlices(this.count, 1 << 15, (from, to) => {
      for (let place = from; place < to; place++) {
        const at = order ? order[place] : place;
        found[place + 1] = found[place] + (has(at) ? 1 : 0);
      }
    });
    return found;
  }

  /** Keeps the result of a filter: 1 for each record that matches; null shows all. */
  async choose(matches) {
    const has = (at) => matches[at] !== 0;
    const counts = matches && [await this.runningCount(has), await this.runningCount(has, null)];
    this.matches = matches;
    [this.chosen, this.chosenBefore] = counts ?? [];
  }

  typeName(at) {
    if (!(this.what[at] & HAS_CODE)) return null;
    return SPEC.commands[this.code[at]]?.name ?? SPEC.unknown;
  }

  /** The connection of a lane as text; that of controller calls has no number. */
  connectionOf(lane) {
    const [number] = this.tables.lanes[lane];
    return number === "0" ? "controller" : number;
  }

  get connectionCount() {
    return this.tables.lanes.filter(([number]) => number !== "0").length;
  }

  /** A name for every record. */
  nameOf(at) {
    const kind = KINDS[this.what[at] & KIND];
    if (kind === "call") return this.call[at] ? this.tables.calls[this.call[at] - 1].rpc : "call, not read";
    if (kind === "bytes") return "bytes that are no frame";
    if (kind !== "frame") return kind === "open" ? "opened" : "closed";
    const name = this.typeName(at);
    return name === SPEC.unknown ? `${name} ${this.code[at]}` : name ?? "no header";
  }

  /** Which side a record comes from. */
  sideOf(at) {
    const reply = this.what[at] & REPLY, kind = this.what[at] & KIND;
    return kind === OPEN || kind === CLOSE ? (reply ? "by the store" : "by the client") : reply ? "reply" : "request";
  }

  namesOf(at) {
    return this.tables.sets[this.segments[at]].map((name) => this.tables.names[name]);
  }

  /** How many of a record's bytes the page has. */
  keptOf(at) {
    const { head, tail } = this.tables;
    return this.size[at] <= head + tail ? this.size[at] : head + tail;
  }

  /** The bytes of a record that the page has: its first `head` bytes, and its last ones if there is a gap. */
  async dataOf(at) {
    const number = Math.floor(at / this.tables.block), first = number * this.tables.block;
    if (!this.blocks.has(number)) {
      if (this.blocks.size > 20) this.blocks.delete(this.blocks.keys().next().value);
      this.blocks.set(number, this.bytesOf(`bytes-${number}`));
    }
    const block = await this.blocks.get(number);
    const isSame = Math.floor(this.last / this.tables.block) === number;
    const isNear = isSame && Math.abs(this.last - at) < at - first;
    let [place, start] = isNear ? [this.last, this.lastStart] : [first, 0];
    while (place < at) start += this.keptOf(place++);
    while (place > at) start -= this.keptOf(--place);
    [this.last, this.lastStart] = [at, start];
    return new Bytes(block.slice(start, start + this.keptOf(at)), this.size[at], this.tables.head);
  }

  /** The changes of the state of entities, sorted by fact: `byFact` gives the places of each in `at` and `to`. */
  async loadChanges() {
    if (this.changes) return this.changes;
    const { entities, most_facts, changes } = this.tables.states;
    const at = await summed(await gathered(await this.bytesOf("change_at"), changes, 2));
    const of = await gathered(await this.bytesOf("change_of"), changes, 1);
    const to = await gathered(await this.bytesOf("change_to"), changes, 2);
    const start = new Int32Array(entities.length * most_facts + 1);
    await inSlices(changes, 1 << 16, (from, to) => {
      for (let each = from; each < to; each++) start[of[each] + 1]++;
    });
    await inSlices(start.length - 1, 1 << 18, (from, to) => {
      for (let fact = from; fact < to; fact++) start[fact + 1] += start[fact];
    });
    const next = start.slice(), byFact = new Int32Array(changes);
    await inSlices(changes, 1 << 16, (from, to) => {
      for (let each = from; each < to; each++) byFact[next[of[each]]++] = each;
    });
    const recordOf = (change) => at[2 * change];
    this.changes = { recordOf, values: new BigInt64Array(to.buffer), start, byFact };
    return this.changes;
  }

  /** The numbers of the entities with a name, by kind and name; that of a transaction without its hyphens. */
  async entitiesNamed() {
    if (this.named) return this.named;
    const { entities } = this.tables.states, named = new Map();
    await inSlices(entities.length, 1 << 13, (from, to) => {
      for (let number = from; number < to; number++) {
        const [kind, name] = entities[number], isTransaction = kind === "transaction";
        const key = `${kind} ${isTransaction ? name.replaceAll("-", "") : name}`;
        const found = named.get(key);
        if (found) found.push(number);
        else named.set(key, [number]);
      }
    });
    this.named = named;
    return named;
  }

  /** What is known of an entity after a record: [fact, value, the record that says so, number of changes so far]. */
  async stateOf(entity, at) {
    const { entities, facts, words, most_facts } = this.tables.states;
    const { recordOf, values, start, byFact } = await this.loadChanges();
    const found = [];
    facts[entities[entity][0]].forEach(([fact, isWord], number) => {
      const of = entity * most_facts + number, from = start[of];
      let low = from, high = start[of + 1];
      while (low < high) {
        const middle = (low + high) >> 1;
        if (recordOf(byFact[middle]) <= at) low = middle + 1;
        else high = middle;
      }
      if (low === from) return;
      const change = byFact[low - 1];
      const value = isWord ? words[Number(values[change])] : String(values[change]);
      found.push([fact, value, recordOf(change), low - from]);
    });
    return found;
  }
}

/** Bytes of which some in the middle may be missing. */
class Bytes {
  constructor(kept, size, head) {
    this.kept = kept;
    this.size = size;
    this.head = kept.length < size ? Math.min(head, kept.length) : size;
    this.shift = size - kept.length;
    this.view = new DataView(kept.buffer, kept.byteOffset, kept.length);
  }

  has(at, length) {
    return at + length <= this.head || at >= this.head + this.shift || length === 0;
  }

  /** The place in `kept` of bytes that are there. */
  place(at) {
    return at < this.head ? at : at - this.shift;
  }

  int32(at) {
    return this.view.getInt32(this.place(at));
  }

  /** Those of `length` bytes that are there, up to the first that is missing. */
  slice(at, length) {
    if (this.has(at, length)) return this.kept.subarray(this.place(at), this.place(at) + length);
    return this.kept.subarray(Math.min(at, this.head), this.head);
  }
}

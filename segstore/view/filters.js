// The filter language of segstore/wire/trace/filters.py, over the columns of a trace: the same expressions, the same
// results, the same errors. Names, values and units come from Python, in SPEC.filter.

class FilterError extends Error {}

class ParseError extends FilterError {
  constructor(column, expected, found) {
    super(`column ${column}: expected ${expected}, found ${found ? elided(quoted(found), 100) : "the end"}`);
  }
}

const fold = (text) => text.toLowerCase().toUpperCase().toLowerCase();

/** A text as Python's repr writes it. */
function quoted(text) {
  const mark = text.includes("'") && !text.includes('"') ? '"' : "'";
  const names = { "\t": "\\t", "\n": "\\n", "\r": "\\r", "\\": "\\\\" };
  const shown = Array.from(text, (each) => {
    if (each in names) return names[each];
    if (each === mark) return `\\${mark}`;
    if (each === " " || !/[\p{C}\p{Z}]/u.test(each)) return each;
    const code = each.codePointAt(0);
    const [letter, digits] = code < 0x100 ? ["x", 2] : code < 0x10000 ? ["u", 4] : ["U", 8];
    return `\\${letter}${code.toString(16).padStart(digits, "0")}`;
  });
  return mark + shown.join("") + mark;
}

/** A text without its middle if it is longer than that. */
function elided(text, longest) {
  const all = Array.from(text), tail = Math.floor(longest / 3);
  if (all.length <= longest) return text;
  const start = all.slice(0, longest - tail).join(""), end = all.slice(all.length - tail).join("");
  return `${start}… ${end} (${all.length} characters)`;
}

/** The most similar of some words, as Python's difflib chooses it; undefined if none is similar. */
function nearest(word, words) {
  let best = 0.6, found;
  for (const each of words) {
    const score = similarity(each, word);
    if (score > best || (score === best && (found === undefined || each > found))) [best, found] = [score, each];
  }
  return found;
}

function similarity(one, other) {
  const total = one.length + other.length;
  if (!total) return 1;
  let matched = 0;
  const ranges = [[0, one.length, 0, other.length]];
  while (ranges.length) {
    const [a0, a1, b0, b1] = ranges.pop();
    let length = 0, a = a0, b = b0, row = [];
    for (let at = a0; at < a1; at++) {
      const next = [];
      for (let place = b0; place < b1; place++) {
        if (one[at] !== other[place]) continue;
        const run = next[place] = (row[place - 1] ?? 0) + 1;
        if (run > length) [length, a, b] = [run, at - run + 1, place - run + 1];
      }
      row = next;
    }
    if (!length) continue;
    matched += length;
    ranges.push([a0, a, b0, b], [a + length, a1, b + length, b1]);
  }
  return 2 * matched / total;
}

// --- parsing ------------------------------------------------------------------------------------------------------

const WORD = /[^\s()"'=<>!~]+/y, OPERATOR = /<=|>=|!=|!~|==|[=<>~]/y;
const PATH = /data(?:\[(\d{1,9})\])?((?:\.[^.[\]]+|\[\d{1,9}\])*)/iy, KEY = /\.([^.[\]]+)|\[(\d+)\]/g;
const NUMBER = /^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?$/;
const QUOTED = /"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'/sy, SLASHES = /\/((?:[^/\\]|\\.)*)\//y;

function matchAt(expression, text, at) {
  expression.lastIndex = at;
  return expression.exec(text);
}

/** The test of a comparison that no record matches. */
const never = () => false;

/** Parses a filter to a tree: {any}, {all}, {not}, or {name, test} of which `test` takes the value of the name. */
class Parser {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.terms = 0;
    this.readsPayloads = false;
  }

  parse() {
    const { text } = this, length = Array.from(text).length;
    if (length > SPEC.filter.most_text) throw new ParseError(1, `at most ${SPEC.filter.most_text} characters`, text);
    const tree = this.either(0);
    if (this.peek()) this.fail("'and', 'or' or the end");
    return tree;
  }

  /** The next token: a word, an operator, a quoted text or one other character; "" at the end. */
  peek() {
    this.at += matchAt(/\s*/y, this.text, this.at)[0].length;
    for (const each of [WORD, OPERATOR, QUOTED]) {
      const found = matchAt(each, this.text, this.at);
      if (found) return found[0];
    }
    return this.at < this.text.length ? String.fromCodePoint(this.text.codePointAt(this.at)) : "";
  }

  fail(expected) {
    const found = this.peek();
    throw new ParseError(this.column(this.at), expected, found);
  }

  column(at) {
    return Array.from(this.text.slice(0, at)).length + 1;
  }

  count(terms) {
    this.terms += terms;
    const most = SPEC.filter.most_terms;
    if (this.terms > most) this.fail(`at most ${most} terms: comparisons, and characters of patterns`);
  }

  word(wanted) {
    const found = this.peek();
    if (fold(found) !== wanted) return false;
    this.at += found.length;
    return true;
  }

  either(depth) {
    const parts = [this.both(depth)];
    while (this.word("or")) parts.push(this.both(depth));
    return parts.length === 1 ? parts[0] : { any: parts };
  }

  both(depth) {
    const parts = [this.part(depth)];
    while (this.word("and")) parts.push(this.part(depth));
    return parts.length === 1 ? parts[0] : { all: parts };
  }

  /** One part of a conjunction, with its source. */
  part(depth) {
    const start = this.at, tree = this.one(depth);
    return { ...tree, text: this.text.slice(start, this.at).trim() };
  }

  one(depth) {
    const { deepest } = SPEC.filter;
    if (depth > deepest) this.fail(`at most ${deepest} levels of 'not' and parentheses`);
    if (this.word("not")) return { not: this.one(depth + 1) };
    if (this.peek() !== "(") return this.comparison();
    this.at += 1;
    const inner = this.either(depth + 1);
    if (this.peek() !== ")") this.fail("')', 'and' or 'or'");
    this.at += 1;
    return inner;
  }

  comparison() {
    this.count(1);
    const { names, operators } = SPEC.filter, found = this.peek(), path = matchAt(PATH, found, 0);
    if (path?.[0] === found) return this.payload(path);
    if (/^data[.[]/i.test(found)) this.fail("a path such as data[0].city");
    const name = fold(found) === "writer" ? "writer_id" : fold(found);
    if (!Object.hasOwn(names, name)) {
      const near = nearest(name, Object.keys(names));
      this.fail(near ? `a name (${near}?)` : `'not', '(' or one of ${Object.keys(names).join(", ")}`);
    }
    this.at += found.length;
    const sort = names[name], sign = this.peek(), allowed = operators[sort];
    let chosen = sign === "==" ? "=" : sign;
    if (!allowed.includes(chosen)) {
      if (sort !== "flag" || matchAt(OPERATOR, sign, 0)?.[0] === sign) this.fail(`one of ${allowed.join(" ")}`);
      return { name, test: (value) => value };
    }
    this.at += sign.length;
    const negated = chosen.startsWith("!");
    if (chosen.endsWith("~")) {
      const pattern = this.pattern(sort);
      return { name, test: (value) => some(value, (values) => matchesAny(values, pattern) !== negated) };
    }
    const wanted = this.value(sort);
    if (sort === "texts") {
      return { name, test: (value) => some(value, (values) => values.includes(wanted) !== negated) };
    }
    if (sort === "size" && chosen === "<" && wanted === 0n) return { any: [] };
    const compare = {
      "=": (value) => value === wanted, "!=": (value) => value !== wanted, "<": (value) => value < wanted,
      "<=": (value) => value <= wanted, ">": (value) => value > wanted, ">=": (value) => value >= wanted,
    }[chosen];
    return { name, test: (value) => value !== null && compare(value) };
  }

  /** A comparison of payloads, or of values of JSON documents in them. */
  payload([, event, way]) {
    const keys = Array.from(way.matchAll(KEY), ([, key, index]) => key ?? Number(index));
    const { data_terms: terms, operators } = SPEC.filter;
    this.readsPayloads = true;
    this.count(terms - 1);
    this.at += this.peek().length;
    const sign = this.peek() === "==" ? "=" : this.peek();
    const allowed = keys.length ? operators.data : operators.data.filter((each) => !/[<>]/.test(each));
    if (!allowed.includes(sign)) this.fail(`one of ${allowed.join(" ")}`);
    this.at += this.peek().length;
    const holds = this.payloadTest(keys, sign.replace("!", "")), negated = sign.startsWith("!");
    if (holds === never && !negated) return { any: [] };
    const test = (payloads) => {
      const chosen = event === undefined ? payloads : payloads.slice(Number(event), Number(event) + 1);
      const values = keys.length ? chosen.flatMap((each) => valuesAt(each, keys)) : chosen;
      return values.length > 0 && values.some(holds) !== negated;
    };
    return { name: "data", test };
  }

  /** The right side of a comparison of payloads, as a predicate of a payload or a value in it. */
  payloadTest(keys, sign) {
    this.peek();
    const start = this.at;
    if (sign === "~" && matchAt(SLASHES, this.text, start)) {
      const pattern = this.pattern("texts");
      return (value) => textOf(value) !== null && pattern.matches(textOf(value));
    }
    const isQuoted = /["']/.test(this.text[start] ?? "");
    const text = this.peek() ? this.textValue() : this.fail(SPEC.filter.expected.data);
    if (!keys.length && !isQuoted && /^0x/i.test(text)) {
      if (!/^0x([0-9a-f]{2})+$/i.test(text)) {
        throw new ParseError(this.column(start), "pairs of hex digits such as 0x0aff", text);
      }
      const wanted = binary(Uint8Array.from(text.slice(2).match(/../g), (each) => parseInt(each, 16)));
      return sign === "=" ? (value) => binary(value) === wanted : (value) => binary(value).includes(wanted);
    }
    const wanted = binary(new TextEncoder().encode(text)), number = NUMBER.test(text) ? Number(text) : null;
    if (sign === "=") {
      return (value) => {
        if (typeof value === "number") return value === number;
        return value instanceof Uint8Array ? binary(value) === wanted : String(value) === text;
      };
    }
    if (sign !== "~") {
      if (number === null) throw new ParseError(this.column(start), "a number", text);
      if ((sign === ">" && number === Infinity) || (sign === "<" && number === -Infinity)) return never;
      const compare = {
        "<": (value) => value < number, "<=": (value) => value <= number,
        ">": (value) => value > number, ">=": (value) => value >= number,
      }[sign];
      return (value) => typeof value === "number" && compare(value);
    }
    let pattern;
    try {
      pattern = glob(`*${text}*`, false);
    } catch (error) {
      if (!(error instanceof PatternError)) throw error;
      throw new ParseError(this.column(start), `a glob (${error.message})`, this.text.slice(start, this.at));
    }
    this.count(pattern.weight);
    return (value) => {
      if (value instanceof Uint8Array && binary(value).includes(wanted)) return true;
      const found = textOf(value);
      return found !== null && (found.includes(text) || pattern.matches(found));
    };
  }

  textValue() {
    const found = this.peek(), quote = matchAt(QUOTED, this.text, this.at);
    if (quote) {
      this.at += quote[0].length;
      return (quote[1] ?? quote[2]).replace(/\\(.)/gsu, "$1");
    }
    if (matchAt(WORD, found, 0)?.[0] !== found) this.fail("a value");
    this.at += found.length;
    return found;
  }

  pattern(sort) {
    this.peek();
    const start = this.at, ignoreCase = sort !== "texts", slashes = matchAt(SLASHES, this.text, start);
    let found;
    try {
      if (slashes) {
        this.at += slashes[0].length;
        found = regularExpression(slashes[1].replaceAll("\\/", "/"), ignoreCase);
      } else found = glob(this.textValue(), ignoreCase);
    } catch (error) {
      if (!(error instanceof PatternError)) throw error;
      const expected = `a ${slashes ? "regular expression" : "glob"} (${error.message})`;
      throw new ParseError(this.column(start), expected, this.text.slice(start, this.at));
    }
    this.count(found.weight);
    return found;
  }

  value(sort) {
    const { expected, words } = SPEC.filter;
    if (!this.peek()) this.fail(expected[sort]);
    const start = this.at, found = this.textValue(), value = valueOf(sort, found);
    if (value !== undefined) return value;
    const { guessed, meant } = SPEC.filter, hints = sort === "type" ? { ...meant } : {};
    for (const [word, name] of Object.entries(words[sort] ?? {})) hints[word] = `${name}?`;
    const near = sort in guessed ? nearest(fold(found), Object.keys(hints)) : undefined, hint = hints[near];
    const wanted = near === undefined ? expected[sort] : `a ${guessed[sort]} (${hint})`;
    throw new ParseError(this.column(start), wanted, found);
  }
}

const LATIN = new TextDecoder("latin1"), LENIENT = new TextDecoder("utf-8", { ignoreBOM: true });
const STRICT = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Bytes as a text of as many characters, which is fast to search. */
const binary = (bytes) => LATIN.decode(bytes);

/** The text of a payload or a value; null of a value that is none. */
function textOf(value) {
  if (value instanceof Uint8Array) return LENIENT.decode(value);
  return typeof value === "string" ? value : null;
}

/** The value of a JSON document at a path, if there is one; objects and arrays are none. */
function valuesAt(payload, keys) {
  let value;
  try {
    value = JSON.parse(STRICT.decode(payload));
  } catch {
    return [];
  }
  for (const key of keys) {
    const isIndex = typeof key === "number";
    const isThere = isIndex ? Array.isArray(value) && key < value.length
      : value !== null && typeof value === "object" && !Array.isArray(value) && Object.hasOwn(value, key);
    if (!isThere) return [];
    value = value[key];
  }
  return value !== null && typeof value === "object" ? [] : [value];
}

const some = (values, test) => values !== null && values.length > 0 && test(values);

/** Whether one of some texts matches, of which only the first characters are looked at. */
function matchesAny(values, pattern) {
  let left = SPEC.filter.most_matched;
  for (const each of Array.isArray(values) ? values : [values]) {
    left -= Array.from(each).length;
    if (left < 0) return false;
    if (pattern.matches(each)) return true;
  }
  return false;
}

/** A value as columns have it; undefined if the text is none. */
function valueOf(sort, text) {
  const { words, units } = SPEC.filter;
  if (sort in words) return Object.hasOwn(words[sort], fold(text)) ? words[sort][fold(text)] : undefined;
  if (sort in units) {
    const folded = sort === "size" ? (unit) => unit.toUpperCase() : (unit) => unit;
    return quantity(text, units[sort], folded);
  }
  if (sort === "number") {
    const found = /^\s*([+-]?)(\d+(?:_\d+)*)\s*$/.exec(text);
    return found && found[2].length <= 4300 ? BigInt(found[1] + found[2].replaceAll("_", "") || 0) : undefined;
  }
  if (sort === "uuid") {
    const inside = text.replaceAll("urn:", "").replaceAll("uuid:", "").replace(/^[{}]+|[{}]+$/g, "");
    const digits = inside.replaceAll("-", "");
    if (!/^[0-9a-f]{32}$/i.test(digits)) return undefined;
    return digits.toLowerCase().replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
  }
  return text;
}

function quantity(text, units, folded) {
  const found = /^(\d+)(?:\.(\d+))?\s*([A-Za-zµ]*)$/.exec(text);
  if (!found) return undefined;
  const [, whole, part = "", name] = found, digits = BigInt(whole + part);
  if (!name && !digits) return 0n;
  if (!Object.hasOwn(units, folded(name))) return undefined;
  return digits * BigInt(units[folded(name)]) / 10n ** BigInt(part.length);
}

// --- evaluating ---------------------------------------------------------------------------------------------------

const callOf = (trace, at) => trace.call[at] ? trace.tables.calls[trace.call[at] - 1] : null;
const streamsOf = (trace, at) => callOf(trace, at)?.streams ?? [];

/** A stream as filters name it: without its scope, and with it. */
function namesOfStream([, scope, stream]) {
  if (stream === null) return [];
  return scope === null ? [stream] : [stream, `${scope}/${stream}`];
}

/** For each name its value at a record: null or an empty list if it has none. */
const VALUES = {
  type: (trace, at) => trace.typeName(at),
  kind: (trace, at) => KINDS[trace.what[at] & KIND],
  code: (trace, at) => trace.what[at] & HAS_CODE ? BigInt(trace.code[at]) : null,
  segment: (trace, at) => trace.namesOf(at).map(([name]) => name),
  stream: (trace, at) => trace.namesOf(at).flatMap(namesOfStream)
    .concat(streamsOf(trace, at).flatMap(([scope, stream]) => stream ? [stream, `${scope}/${stream}`] : [])),
  scope: (trace, at) => trace.namesOf(at).flatMap(([, scope]) => scope === null ? [] : [scope])
    .concat(streamsOf(trace, at).map(([scope]) => scope)),
  rpc: (trace, at) => callOf(trace, at)?.rpc ?? null,
  status: (trace, at) => callOf(trace, at)?.status || callOf(trace, trace.replyOf[at])?.status || null,
  flow: (trace, at) => trace.what[at] & HAS_ID ? BigInt(trace.ids[2 * at + 1]) : null,
  sequence: (trace, at) => trace.what[at] & HAS_ID ? BigInt(trace.ids[2 * at]) : null,
  request_id: (trace, at) => trace.what[at] & HAS_ID ? trace.requestId[at] : null,
  writer_id: (trace, at) => trace.tables.writers[trace.writer[at]],
  connection: (trace, at) => BigInt(trace.tables.lanes[trace.lane[at]][0]),
  direction: (trace, at) => trace.what[at] & REPLY ? 1 : 0,
  failure: (trace, at) => trace.failureOf(trace.replyOf[at] < 0 ? at : trace.replyOf[at]),
  malformed: (trace, at) => (trace.what[at] & MALFORMED) !== 0,
  size: (trace, at) => BigInt(trace.size[at]),
  latency: (trace, at) => {
    const asked = trace.requestOf[at], reply = trace.replyOf[at];
    if (reply >= 0) return trace.since[reply] - trace.since[at];
    return asked < 0 ? null : trace.since[at] - trace.since[asked];
  },
  time: (trace, at) => trace.since[at],
  data: (trace) => trace.payloads,
};

/** Names whose value only depends on a column: tests are then run once per number in it, and not for each record. */
const COLUMN_OF = {
  segment: "segments",
  stream: "segments",
  scope: "segments",
  writer_id: "writer",
  connection: "lane",
};

/** Makes a predicate of records. */
function compiled(tree, trace) {
  if (tree.any) {
    const parts = tree.any.map((each) => compiled(each, trace));
    return (at) => parts.some((part) => part(at));
  }
  if (tree.all) {
    const parts = tree.all.map((each) => compiled(each, trace));
    return (at) => parts.every((part) => part(at));
  }
  if (tree.not) {
    const part = compiled(tree.not, trace);
    return (at) => !part(at);
  }
  const value = VALUES[tree.name], column = COLUMN_OF[tree.name], known = new Map();
  if (!column) return (at) => Boolean(tree.test(value(trace, at)));
  return (at) => {
    // A controller call has a scope and streams of its own, without a segment.
    const key = tree.name !== "connection" && trace.call[at] ? -trace.call[at] : trace[column][at];
    if (!known.has(key)) known.set(key, Boolean(tree.test(value(trace, at))));
    return known.get(key);
  };
}

class Unknown extends Error {}

/** The value that all records of a type have; throws `Unknown` if it depends on the record. */
function known(subject, name) {
  const value = subject[name];
  if (value === undefined) throw new Unknown();
  return typeof value === "number" && name !== "direction" ? BigInt(value) : value;
}

function mayHold(tree, subject) {
  try {
    return holdsFor(tree, (name) => known(subject, name));
  } catch (error) {
    if (error instanceof Unknown) return true;
    throw error;
  }
}

function holdsFor(tree, valueOfName) {
  if (tree.any) return tree.any.some((part) => holdsFor(part, valueOfName));
  if (tree.all) return tree.all.every((part) => holdsFor(part, valueOfName));
  if (tree.not) return !holdsFor(tree.not, valueOfName);
  return Boolean(tree.test(valueOfName(tree.name)));
}

/** Refuses a filter that no record of a trace can match. */
function checkPossible(tree, text) {
  const { possible } = SPEC.filter, isConjunction = tree.all && tree.text === undefined;
  const parts = isConjunction ? tree.all : [{ ...tree, text: text.trim() }];
  if (possible.some((subject) => parts.every((part) => mayHold(part, subject)))) return;
  const never = parts.filter((part) => !possible.some((subject) => mayHold(part, subject)));
  const said = (never.length ? never : parts).map((part) => part.text).join(" and ");
  throw new FilterError(`${elided(said, 100)}: no record of a trace can match this`);
}

/** Each record with its payloads: the events of an append or a read, the keys and values of tables. */
async function* payloadsOf(trace) {
  const isEmpty = new Set(SPEC.filter.possible.filter(({ data }) => data).map(({ code }) => code));
  const mayHave = (at) => (trace.what[at] & (KIND | MALFORMED)) === FRAME && !isEmpty.has(trace.code[at]);
  let since = performance.now();
  for (let at = 0; at < trace.count; at++) {
    if (performance.now() - since > SLICE_MS) {
      await pause();
      since = performance.now();
    }
    yield [at, mayHave(at) ? await payloadsAt(trace, at) : []];
  }
}

async function payloadsAt(trace, at) {
  const bytes = await trace.dataOf(at), most = SPEC.filter.data_bytes;
  if (trace.code[at] === SPEC.append_block) return partsOf(bytes.slice(BLOCK_DATA, bytes.size - BLOCK_DATA), most);
  const spans = describe(bytes), field = (name) => spans.find((each) => each.field === name);
  if (trace.blockOf[at] >= 0) {
    const block = await trace.dataOf(trace.blockOf[at]);
    return partsOf(joined(block, field("size_of_whole_events").value, bytes, field("data")), most);
  }
  const found = [];
  let left = most;
  for (const span of spans.filter((each) => each.kind === "data" && !each.secret)) {
    const part = bytes.slice(span.offset, span.length);
    if (span.field === "data") found.push(...partsOf(part, most));
    else if (span.field.endsWith(".data") && left > 0) {
      found.push(part.subarray(0, left));
      left -= part.length;
    }
  }
  return found;
}

/** The events in framed bytes, without padding; bytes that are none are one part. */
function partsOf(all, most) {
  const data = all.subarray(0, most), found = [], view = new DataView(data.buffer, data.byteOffset, data.length);
  let at = 0;
  while (data.length - at >= HEADER_BYTES) {
    const name = SPEC.block_frames[view.getInt32(at)], size = view.getInt32(at + 4);
    if (!name || size < 0 || (at === 0 && size === 0 && !precedesEvent(view))) break;
    const part = data.subarray(at + HEADER_BYTES, at + HEADER_BYTES + size);
    if (name !== "PADDING" && (part.length || !size)) found.push(part);
    at += HEADER_BYTES + size;
  }
  if (at < data.length) found.push(data.subarray(at));
  return found;
}

/** Whether a header with a length follows the first header; mere zeros would be headers without one. */
function precedesEvent(view) {
  return view.byteLength >= 2 * HEADER_BYTES && view.getInt32(HEADER_BYTES) in SPEC.block_frames
    && view.getInt32(HEADER_BYTES + 4) > 0;
}

/**
 * Which records match a filter: 1 for each that does. Raises FilterError, also if none matches because none can.
 * `isCurrent` stops it when it says no.
 */
async function matching(text, trace, isCurrent = () => true) {
  const parser = new Parser(text), tree = parser.parse();
  const holds = compiled(tree, trace), found = new Uint8Array(trace.count);
  trace.shortened = parser.readsPayloads ? trace.tables.left_out : 0;
  if (parser.readsPayloads) {
    for await (const [at, payloads] of payloadsOf(trace)) {
      if (!isCurrent()) return null;
      trace.payloads = payloads;
      found[at] = holds(at) ? 1 : 0;
    }
  } else {
    await inSlices(trace.count, 2048, (from, to) => {
      if (!isCurrent()) return;
      for (let at = from; at < to; at++) found[at] = holds(at) ? 1 : 0;
    });
  }
  if (!isCurrent()) return null;
  if (!found.includes(1)) checkPossible(tree, text);
  return found;
}

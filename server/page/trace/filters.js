// The filter language of segstore/wire/trace/filters.py, over the columns of a trace: the same expressions, the same
// results. Names, values and units come from Python, in SPEC.filter. Regular expressions are the browser's.

class FilterError extends Error {}

const WORD = /[^\s()"'=<>!~]+/y, OPERATOR = /<=|>=|!=|!~|==|[=<>~]/y;
const QUOTED = /"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'/sy, SLASHES = /\/((?:[^/\\]|\\.)*)\//y;
const PATH = /^data(?:\[(\d{1,9})\])?((?:\.[^.[\]]+|\[\d{1,9}\])*)$/i, KEY = /\.([^.[\]]+)|\[(\d+)\]/g;
const NUMBER = /^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?$/;

function matchAt(expression, text, at) {
  expression.lastIndex = at;
  return expression.exec(text);
}

/** A glob as the source of a regular expression for a whole text. */
function globSource(text) {
  return text.replace(/\[(!?)(\][^\]]*|[^\]]+)\]|./gsu, (one, not, inside) =>
    inside ? `[${not && "^"}${inside.replace(/[\\[\]^]/g, "\\$&")}]`
      : { "*": ".*", "?": "." }[one] ?? one.replace(/[\\^$.+()[\]{}|/]/, "\\$&"));
}

/** A regular expression in the syntax of Rust as one of JavaScript: leading flags, named groups, ends of the text. */
function expressionOf(text, flags) {
  const [, set = "", rest] = /^(?:\(\?([imsuU]+)\))?(.*)$/su.exec(text);
  const source = rest.replace(/\\x\{([0-9A-Fa-f]+)\}|\(\?P<|\\[^]/gu, (one, code) =>
    code ? `\\u{${code}}` : { "(?P<": "(?<", "\\A": "(?<![^])", "\\z": "(?![^])", "\\Z": "(?![^])" }[one] ?? one);
  return new RegExp(source, Array.from(new Set(`${flags}${set.replace(/[^ims]/g, "")}u`)).join(""));
}

/** Parses a filter to a tree: {any}, {all}, {not}, or {name, test} of which `test` takes the value of the name. */
class Parser {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.readsPayloads = false;
  }

  parse() {
    const tree = this.either();
    if (this.peek()) this.fail("'and', 'or' or the end");
    return tree;
  }

  /** The next token: a word, an operator, a quoted text or one other character; "" at the end. */
  peek() {
    this.at += matchAt(/\s*/y, this.text, this.at)[0].length;
    const found = [WORD, OPERATOR, QUOTED].map((token) => matchAt(token, this.text, this.at)).find(Boolean);
    return found?.[0] ?? this.text.slice(this.at, this.at + 1);
  }

  take() {
    const found = this.peek();
    this.at += found.length;
    return found;
  }

  fail(expected, at = null) {
    const found = this.peek(), column = Array.from(this.text.slice(0, at ?? this.at)).length + 1;
    const said = at === null ? found : this.text.slice(at, this.at);
    throw new FilterError(`column ${column}: expected ${expected}, found ${said ? `'${shown(said)}'` : "the end"}`);
  }

  word(wanted) {
    return this.peek().toLowerCase() === wanted && Boolean(this.take());
  }

  several(word, key, part) {
    const parts = [part()];
    while (this.word(word)) parts.push(part());
    return { [key]: parts };
  }

  either() {
    return this.several("or", "any", () => this.several("and", "all", () => this.one()));
  }

  one() {
    if (this.word("not")) return { not: this.one() };
    if (this.peek() !== "(") return this.comparison();
    this.take();
    const inner = this.either();
    if (this.peek() !== ")") this.fail("')', 'and' or 'or'");
    this.take();
    return inner;
  }

  operator(allowed) {
    const sign = this.peek() === "==" ? "=" : this.peek();
    if (!allowed.includes(sign)) this.fail(`one of ${allowed.join(" ")}`);
    this.take();
    return sign;
  }

  comparison() {
    const { names, operators } = SPEC.filter, word = this.peek().toLowerCase(), path = PATH.exec(this.peek());
    if (path) return this.payload(path);
    if (/^data[.[]/.test(word)) this.fail("a path such as data[0].city");
    const name = word === "writer" ? "writer_id" : word;
    if (!Object.hasOwn(names, name)) this.fail(`'not', '(' or one of ${Object.keys(names).join(", ")}`);
    this.take();
    const sort = names[name], isSign = Boolean(matchAt(OPERATOR, this.peek(), 0));
    if (sort === "flag" && !isSign) return { name, test: (value) => value };
    const sign = this.operator(operators[sort]), isNegated = sign.startsWith("!");
    if (sign.endsWith("~")) {
      const pattern = this.pattern(sort === "texts" ? "" : "i");
      const matches = (value) => [value].flat().some((text) => pattern.test(text));
      return { name, test: (value) => hasAny(value) && matches(value) !== isNegated };
    }
    const wanted = this.value(sort);
    if (sort === "texts" || sort === "rules") {
      return { name, test: (value) => hasAny(value) && value.includes(wanted) !== isNegated };
    }
    if (sort === "size" && sign === "<" && wanted === 0n) return { any: [] };
    return { name, test: (value) => value !== null && COMPARE[sign](value, wanted) };
  }

  payload([, event, way]) {
    const keys = Array.from(way.matchAll(KEY), ([, key, index]) => key ?? Number(index));
    const { data } = SPEC.filter.operators;
    this.readsPayloads = true;
    this.take();
    const sign = this.operator(keys.length ? data : data.filter((sign) => !/[<>]/.test(sign)));
    const holds = this.payloadTest(keys, sign.replace("!", ""));
    if (holds === null) return { any: [] };
    const test = (payloads) => {
      const chosen = event === undefined ? payloads : payloads.slice(Number(event), Number(event) + 1);
      const values = keys.length ? chosen.flatMap((payload) => valuesAt(payload, keys)) : chosen;
      return values.length > 0 && values.some(holds) !== sign.startsWith("!");
    };
    return { name: "data", test };
  }

  /** The test of one payload or value; null if none can pass it. */
  payloadTest(keys, sign) {
    if (!this.peek()) this.fail(SPEC.filter.expected.data);
    const start = this.at, slashes = sign === "~" && matchAt(SLASHES, this.text, start);
    if (slashes) {
      const pattern = this.pattern("");
      return (value) => textOf(value) !== null && pattern.test(textOf(value));
    }
    const isHex = !keys.length && /^0x/i.test(this.text.slice(start)), text = this.textValue();
    if (isHex && !/^0x([0-9a-f]{2})+$/i.test(text)) this.fail("pairs of hex digits such as 0x0aff", start);
    const wanted = binary(isHex ? Uint8Array.from(text.slice(2).match(/../g), (byte) => parseInt(byte, 16))
      : new TextEncoder().encode(text));
    const quantity = NUMBER.test(text) ? Number(text) : null;
    if (sign === "=") {
      return (value) => typeof value === "number" ? value === quantity
        : value instanceof Uint8Array ? binary(value) === wanted : String(value) === text;
    }
    if (sign === "~") {
      const pattern = isHex ? /(?!)/ : this.compiled(() => new RegExp(`^${globSource(`*${text}*`)}$`, "su"), start);
      return (value) => (value instanceof Uint8Array && binary(value).includes(wanted))
        || (textOf(value) !== null && pattern.test(textOf(value)));
    }
    if (quantity === null) this.fail("a number", start);
    if (quantity === { ">": Infinity, "<": -Infinity }[sign]) return null;
    return (value) => typeof value === "number" && COMPARE[sign](value, quantity);
  }

  textValue() {
    const found = this.peek(), quote = matchAt(QUOTED, this.text, this.at);
    if (!quote && matchAt(WORD, found, 0)?.[0] !== found) this.fail("a value");
    this.take();
    return quote ? (quote[1] ?? quote[2]).replace(/\\(.)/gsu, "$1") : found;
  }

  pattern(flags) {
    this.peek();
    const start = this.at, slashes = matchAt(SLASHES, this.text, start);
    if (slashes) this.at += slashes[0].length;
    const text = slashes ? slashes[1].replaceAll("\\/", "/") : this.textValue();
    const make = () => slashes ? expressionOf(text, flags) : new RegExp(`^${globSource(text)}$`, `${flags}su`);
    return this.compiled(make, start);
  }

  compiled(make, start) {
    try {
      return make();
    } catch (error) {
      if (!(error instanceof SyntaxError)) throw error;
      return this.fail(`a pattern (${error.message})`, start);
    }
  }

  value(sort) {
    if (!this.peek()) this.fail(SPEC.filter.expected[sort]);
    const start = this.at, value = valueOf(sort, this.textValue());
    return value === undefined ? this.fail(SPEC.filter.expected[sort], start) : value;
  }
}

const COMPARE = {
  "=": (value, wanted) => value === wanted, "!=": (value, wanted) => value !== wanted,
  "<": (value, wanted) => value < wanted, "<=": (value, wanted) => value <= wanted,
  ">": (value, wanted) => value > wanted, ">=": (value, wanted) => value >= wanted,
};
const hasAny = (value) => value !== null && value.length > 0;

const LENIENT = new TextDecoder("utf-8", { ignoreBOM: true });
const STRICT = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Bytes as a text of as many characters, which is fast to search. */
const binary = (bytes) => new TextDecoder("latin1").decode(bytes);

/** The text of a payload or a value; null of a value that is none. */
const textOf = (value) =>
  value instanceof Uint8Array ? LENIENT.decode(value) : typeof value === "string" ? value : null;

/** The value of a JSON document at a path, if there is one; objects and arrays are none. */
function valuesAt(payload, keys) {
  let value = attempt(() => JSON.parse(STRICT.decode(payload)), {});  // without a value at any path
  for (const key of keys) {
    const isThere = value !== null && typeof value === "object" && Array.isArray(value) === (typeof key === "number")
      && Object.hasOwn(value, key);
    if (!isThere) return [];
    value = value[key];
  }
  return value !== null && typeof value === "object" ? [] : [value];
}

/** A value as columns have it; undefined if the text is none. */
function valueOf(sort, text) {
  const { words, units } = SPEC.filter, word = text.toLowerCase();
  if (sort in words) return Object.hasOwn(words[sort], word) ? words[sort][word] : undefined;
  if (sort in units) return quantityOf(text, units[sort], sort === "size");
  if (sort === "number") return /^[+-]?\d+$/.test(text) ? BigInt(text.replace("+", "")) : undefined;
  if (sort !== "uuid") return text;
  const digits = word.replace(/^urn:uuid:|[{}-]/g, "");
  return /^[0-9a-f]{32}$/.test(digits) ? uuidText(digits) : undefined;
}

function quantityOf(text, units, isAnyCase) {
  const [, whole, part = "", unit] = /^(\d+)(?:\.(\d+))?\s*([A-Za-zµ]*)$/.exec(text) ?? [];
  const digits = whole && BigInt(whole + part), name = isAnyCase ? unit?.toUpperCase() : unit;
  if (digits === 0n && !name) return 0n;
  return digits !== undefined && Object.hasOwn(units, name) ? digits * BigInt(units[name]) / 10n ** BigInt(part.length)
    : undefined;
}

/** For each name its value at a record: null or an empty list if it has none. */
const VALUES = {
  type: (trace, at) => trace.typeName(at),
  kind: (trace, at) => KINDS[trace.what[at] & KIND],
  code: (trace, at) => trace.what[at] & HAS_CODE ? BigInt(trace.code[at]) : null,
  segment: (trace, at) => trace.namesOf(at).map(([name]) => name),
  stream: (trace, at) => [...trace.namesOf(at).map(([, ...name]) => name), ...trace.callOf(at)?.streams ?? []]
    .flatMap(([scope, stream]) => stream ? scope === null ? [stream] : [stream, `${scope}/${stream}`] : []),
  scope: (trace, at) => [...trace.namesOf(at).map(([, scope]) => scope),
    ...(trace.callOf(at)?.streams ?? []).map(([scope]) => scope)].filter((scope) => scope !== null),
  rpc: (trace, at) => trace.callOf(at)?.rpc ?? null,
  status: (trace, at) => trace.callOf(at)?.status || trace.callOf(trace.replyOf[at])?.status || null,
  flow: (trace, at) => trace.what[at] & HAS_ID ? BigInt(trace.ids[2 * at + 1]) : null,
  sequence: (trace, at) => trace.what[at] & HAS_ID ? BigInt(trace.ids[2 * at]) : null,
  request_id: (trace, at) => trace.what[at] & HAS_ID ? trace.requestId[at] : null,
  writer_id: (trace, at) => trace.tables.writers[trace.writer[at]],
  connection: (trace, at) => BigInt(trace.tables.lanes[trace.lane[at]][0]),
  direction: (trace, at) => trace.what[at] & REPLY ? 1 : 0,
  failure: (trace, at) => trace.mark[trace.replyOf[at] < 0 ? at : trace.replyOf[at]] === 1,
  malformed: (trace, at) => (trace.what[at] & MALFORMED) !== 0,
  size: (trace, at) => BigInt(trace.size[at]),
  latency: (trace, at) => {
    const request = trace.requestOf[at], reply = trace.replyOf[at];
    if (reply >= 0) return trace.since[reply] - trace.since[at];
    return request < 0 ? null : trace.since[at] - trace.since[request];
  },
  time: (trace, at) => trace.since[at],
  broken: (trace, at) => trace.verdictsOf(at).map(({ rule }) => rule),
  data: (trace) => trace.payloads,
};

/** Whether a filter holds where `valueOf(name)` returns values; undefined if that depends on a value that it lacks. */
function holds({ any, all, not, name, test }, valueOf) {
  if (not) {
    const inner = holds(not, valueOf);
    return inner === undefined ? inner : !inner;
  }
  if (any || all) {
    const results = (any ?? all).map((part) => holds(part, valueOf)), decisive = Boolean(any);
    if (results.includes(decisive)) return decisive;
    return results.includes(undefined) ? undefined : !decisive;
  }
  const value = valueOf(name);
  return value === undefined ? undefined : Boolean(test(value));
}

/** The payloads of a record: the events of an append or a read, the keys and values of tables. */
async function payloadsAt(trace, at) {
  const bytes = await trace.dataOf(at), most = SPEC.filter.data_bytes;
  if (trace.code[at] === SPEC.append_block) return partsOf(bytes.slice(BLOCK_DATA, bytes.size - BLOCK_DATA), most);
  if (trace.blockOf[at] >= 0) return partsOf(await appended(trace, at), most);
  let left = most;
  return describe(bytes).filter((span) => span.kind === "data" && !span.secret).flatMap((span) => {
    const part = bytes.slice(span.offset, span.length), room = left;
    if (span.field === "data") return partsOf(part, most);
    if (!span.field.endsWith(".data") || room <= 0) return [];
    left -= part.length;
    return [part.subarray(0, room)];
  });
}

function partsOf(all, most) {
  const data = all.subarray(0, most), parts = partsIn(data);
  return parts.filter(([, here, size]) => here || !size).map(([start, here]) => data.subarray(start, start + here));
}

/**
 * Which records match a filter: 1 for each that does. Raises FilterError, also if none matches because none can.
 * `isCurrent` stops it when it says no.
 */
async function matching(text, trace, isCurrent = () => true) {
  const parser = new Parser(text), tree = parser.parse(), { possible } = SPEC.filter;
  const found = new Uint8Array(trace.count);
  const isEmpty = new Set(possible.filter(({ data }) => data).map(({ code }) => code));
  const mayHave = (at) => (trace.what[at] & (KIND | MALFORMED)) === FRAME && !isEmpty.has(trace.code[at]);
  trace.shortened = parser.readsPayloads ? trace.tables.left_out : 0;
  for (let at = 0, since = performance.now(); at < trace.count; at++) {
    if (performance.now() - since > 12) {  // ms: then the browser may draw and handle input
      await new Promise((resolve) => setTimeout(resolve));
      since = performance.now();
    }
    if (!isCurrent()) return null;
    if (parser.readsPayloads) trace.payloads = mayHave(at) ? await payloadsAt(trace, at) : [];
    found[at] = holds(tree, (name) => VALUES[name](trace, at)) ? 1 : 0;
  }
  const known = (values) => (name) =>
    typeof values[name] === "number" && name !== "direction" ? BigInt(values[name]) : values[name];
  const isPossible = possible.some((values) => holds(tree, known(values)) !== false);
  if (!found.includes(1) && !isPossible) throw new FilterError("no record of a trace can match this");
  return found;
}

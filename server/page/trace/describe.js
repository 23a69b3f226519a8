// Explains the bytes of a frame: the counterpart of segstore/wire/inspect/describe.py, from the same schema.
// Differences: values of texts and data are looked at when they are shown, and bytes may be missing from the page.

const HEADER_BYTES = 8;
const MOST_SPANS = 5000;
class Unreadable extends Error {}

class Walk {
  constructor(bytes) {
    // isCut: whether the header announces more bytes.
    Object.assign(this, { bytes, at: 0, end: bytes.size, isCut: false, spans: [], secrets: [] });
  }

  take(length, field, value, note = "", kind = "plain") {
    if (this.spans.length === MOST_SPANS) this.stop(`more than ${MOST_SPANS} fields: the rest is not shown`);
    this.spans.push({ offset: this.at, length, field, value, note, secret: this.secrets.includes(field), kind });
    this.at += length;
  }

  /** Ends the walk if a field is longer than what is left, which is still the field's. */
  need(length, field, kind = "plain") {
    const left = this.end - this.at;
    if (length >= 0 && length <= left) return;
    const value = kind === "data" ? undefined : null;
    if (left && length > 0) this.take(left, field, value, `${left} of ${length} bytes`, kind);
    throw new Unreadable();
  }

  /** Checks that bytes can be read here. Bytes that the page leaves out cannot, although the frame has them. */
  present(length, field) {
    this.need(length, field);
    if (!this.bytes.has(this.at, length)) this.stop("not on this page");
  }

  stop(why) {
    this.why = why;
    throw new Unreadable();
  }

  int32(field) {
    this.present(4, field);
    return this.bytes.view.getInt32(this.at);
  }

  count(field, note = "") {
    const number = this.int32(field);
    this.take(4, field, number, note);
    return number;
  }

  node(node, field) {
    const siblings = field.slice(0, field.length - node.name.length);
    switch (node.is) {
      case "Fixed": return this.fixed(node.format, field);
      case "EnumCode": {
        const number = this.int32(field), member = node.members[number];
        return this.take(4, field, member ?? node.unknown, member ? String(number) : `${number} is not one of them`);
      }
      case "Marker":
        if (this.int32(field) !== node.value) throw new Unreadable();
        return this.take(4, field, node.value, "always this");
      case "Text": return this.text(field);
      case "Blob": return this.data(node, field);
      case "Rest": return this.rest(field);
      case "Zeros": return this.take(this.end - this.at, field, this.end - this.at, "the number of bytes left");
      case "SizedData": {
        this.count(`${field}.total`, "bytes of what follows, with the length");
        const length = this.count(`${field}.length`);
        this.raw(length, field);
        if (node.trailer && length) this.fixed(node.trailer.format, siblings + node.trailer.name);
        else if (node.trailer) this.take(0, siblings + node.trailer.name, node.missing, "left out after no data");
        return undefined;
      }
      case "Tail":
        if (this.end - this.at >= node.needs || (this.isCut && this.at < this.end)) return this.node(node.inner, field);
        return this.take(0, field, node.default, "missing: its default", node.inner.is === "Text" ? "text" : "plain");
      case "Nested": return node.parts.forEach((inner) => this.node(inner, `${field}.${inner.name}`));
      case "Counted":
      case "Rows":
        for (let index = 0, number = this.elements(node, field); index < number; index++) {
          if (node.element) this.node(node.element, `${field}[${index}]`);
          for (const column of node.columns ?? []) this.node(column, `${siblings}${column.name}[${index}]`);
        }
        return undefined;
      default: throw new Error(`${field}: no description for ${node.is}`);
    }
  }

  fixed(format, field) {
    const [width, method] = { q: [8, "getBigInt64"], i: [4, "getInt32"], h: [2, "getInt16"], b: [1, "getInt8"],
      "?": [1, "getUint8"], "16s": [16] }[format];
    this.present(width, field);
    const value = method ? this.bytes.view[method](this.at)
      : uuidText(hex(this.bytes.slice(this.at, 16)).join(""));
    this.take(width, field, format === "?" ? value !== 0 : value);
  }

  text(field) {
    this.present(2, `${field}.length`);
    const length = this.bytes.view.getUint16(this.at);
    this.take(2, `${field}.length`, length);
    this.need(length, field, "text");
    if (!this.bytes.has(this.at, length)) return this.take(length, field, undefined, "not whole on this page", "text");
    const value = modifiedUtf8(this.bytes.slice(this.at, length));
    if (value === null) throw new Unreadable();
    return this.take(length, field, value, "", "text");
  }

  data(node, field) {
    const left = this.end - this.at;
    if (node.optional && left < 4 && !(this.isCut && left)) return this.take(0, field, null, "missing: its default");
    const length = this.count(`${field}.length`);
    if (length < 0 && node.negative_is_empty) return this.take(0, field, null, "a negative length is no data");
    return this.raw(length, field);
  }

  raw(length, field) {
    this.need(length, field, "data");
    this.take(length, field, undefined, "", "data");
  }

  rest(field) {
    if (this.bytes.view.getInt32(0) !== SPEC.append_block) return this.raw(this.end - this.at, field);
    let index = 0;
    while (this.end - this.at >= HEADER_BYTES && this.bytes.has(this.at, HEADER_BYTES)) {
      const kind = this.bytes.view.getInt32(this.at), length = this.bytes.view.getInt32(this.at + 4);
      if (!(kind in SPEC.block_frames) || length < 0 || length > this.end - this.at - HEADER_BYTES) break;
      this.take(4, `${field}[${index}].type`, kind, SPEC.block_frames[kind]);
      this.take(4, `${field}[${index}].length`, length);
      this.raw(length, `${field}[${index}]`);
      index++;
    }
    if (this.at < this.end || !index) this.raw(this.end - this.at, index ? `${field}[${index}]` : field);
    return undefined;
  }

  elements(node, field) {
    const number = this.count(`${field}.count`);
    if (number < 0 && !node.negative_is_empty) throw new Unreadable();
    return Math.min(Math.max(number, 0), Math.floor((this.end - this.at) / Math.max(node.smallest, 1)) + 1);
  }
}

/** The spans of a frame, in order and without gaps. */
function describe(bytes) {
  const walk = new Walk(bytes);
  try {
    const code = walk.int32("type"), command = SPEC.commands[code];
    walk.take(4, "type", code, command?.name ?? "");
    const length = walk.int32("length"), left = walk.end - HEADER_BYTES;
    walk.take(4, "length", length, length === left ? "" : `but ${left} bytes follow`);
    walk.isCut = length > left;
    if (length !== left) walk.end = Math.min(walk.end, HEADER_BYTES + Math.max(length, 0));
    if (command && code) {
      if (command.secrets.length) walk.secrets = [...command.secrets, ""]; // unread bytes may contain a part of one
      for (const node of command.nodes) walk.node(node, node.name);
      if (walk.at < walk.end) walk.take(walk.end - walk.at, "", null, "not read: behind the last field");
    } else if (walk.at < walk.end) {
      walk.take(walk.end - walk.at, "data", undefined, "", "data");
    }
  } catch (error) {
    if (!(error instanceof Unreadable)) throw error;
  }
  const offset = walk.at, length = bytes.size - offset, note = walk.why ?? "not read";
  if (length) {
    walk.spans.push({ offset, length, field: "", value: null, note, secret: walk.secrets.includes(""), kind: "plain" });
  }
  return walk.spans;
}

const uuidText = (digits) => digits.replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");

/** Java's modified UTF-8, which also encodes lone surrogates; null if it is not that. */
function modifiedUtf8(bytes) {
  let text = "";
  for (let at = 0, size = 1; at < bytes.length; at += size) {
    const first = bytes[at];
    size = first < 0x80 ? 1 : (first & 0xe0) === 0xc0 ? 2 : 3;
    const rest = bytes.subarray(at + 1, at + size), isFirst = first < 0xf0 && (first & 0xc0) !== 0x80;
    if (!isFirst || rest.length < size - 1 || rest.some((byte) => (byte & 0xc0) !== 0x80)) return null;
    const bits = first & [0x7f, 0x1f, 0x0f][size - 1];
    text += String.fromCharCode(rest.reduce((code, byte) => code << 6 | byte & 0x3f, bits));
  }
  return text;
}

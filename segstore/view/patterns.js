// Globs and regular expressions with the meaning of segstore/wire/patterns.py. Matching takes linear time, whatever the
// pattern and the text: names in a trace are chosen by others. Regular expressions run on an automaton, because those
// of the browser backtrack; globs use lookahead groups, which do not.

const MOST_WEIGHT = 1000;
class PatternError extends Error {}

function bounded(weight) {
  if (weight > MOST_WEIGHT) {
    throw new PatternError(`it has ${weight} characters with repetitions expanded; at most ${MOST_WEIGHT} are allowed`);
  }
  return weight;
}

// --- globs --------------------------------------------------------------------------------------------------------

const literally = (text) => text.replace(/[\^$\\.*+?()[\]{}|/]/g, "\\$&");

/** A class of a glob, from its inside: the rules of Python's fnmatch, whose empty ranges match nothing. */
function globClass(inside) {
  const negated = inside.startsWith("!"), members = Array.from(negated ? inside.slice(1) : inside), parts = [];
  for (let at = 0; at < members.length; at++) {
    if (members[at + 1] === "-" && at + 2 < members.length) {
      if (members[at] <= members[at + 2]) parts.push(`${inClass(members[at])}-${inClass(members[at + 2])}`);
      at += 2;
    } else parts.push(inClass(members[at]));
  }
  if (!parts.length) return negated ? "." : "(?!)";
  return `[${negated ? "^" : ""}${parts.join("")}]`;
}
const inClass = (character) => /[\\\]^[-]/.test(character) ? `\\${character}` : character;

function glob(text, ignoreCase) {
  const characters = Array.from(text), weight = bounded(characters.length), pieces = [""];
  for (let at = 0; at < characters.length; at++) {
    const one = characters[at];
    if (one === "*") {
      if (pieces.length === 1 || pieces.at(-1)) pieces.push("");
    } else if (one === "?") pieces[pieces.length - 1] += ".";
    else if (one === "[") {
      let end = at + 1;
      if (characters[end] === "!") end++;
      if (characters[end] === "]") end++;
      while (end < characters.length && characters[end] !== "]") end++;
      if (end >= characters.length) pieces[pieces.length - 1] += "\\[";
      else {
        pieces[pieces.length - 1] += globClass(characters.slice(at + 1, end).join(""));
        at = end;
      }
    } else pieces[pieces.length - 1] += literally(one);
  }
  // Each piece between two stars is matched as early as possible, and never tried again at another place.
  const [first, ...rest] = pieces, last = rest.pop();
  const atomic = rest.map((piece, number) => `(?=(?<g${number}>.*?${piece}))\\k<g${number}>`).join("");
  const end = last === undefined ? "" : `.*${last}`;
  const expression = new RegExp(`^${first}${atomic}${end}$`, ignoreCase ? "isu" : "su");
  return { matches: (found) => expression.test(found), weight };
}

// --- regular expressions ------------------------------------------------------------------------------------------

const TOKEN = new RegExp([
  /\\./,
  /(?<nested>\[\^?\]?(?:\\.|[^[\]\\])*\[)/,
  /\[\^?\]?(?:\\.|[^\]\\])*\]/,
  /\{(?<least>\d*)(?<several>,(?<most>\d*))?\}/,
  /(?<verbose>\(\?[A-Za-wyz]*x)/,
  /[()]|./,
].map((each) => each.source).join("|"), "gsu");
const CLASSES = { w: "0-9A-Za-z_", d: "0-9", s: "\\t-\\r " };
const ESCAPES = { a: 7, f: 12, t: 9, n: 10, r: 13, v: 11 };

// Assertions, of the characters before and after a place; undefined is an end of the text.
const startsText = (before) => before === undefined;
const startsLine = (before) => before === undefined || before === "\n";
const endsText = (_, after) => after === undefined;
const endsLine = (_, after) => after === undefined || after === "\n";

/** The number of characters of an expression with repetitions expanded. */
function weightOf(expression) {
  const groups = [0];
  let last = 0;
  for (const { 0: token, groups: found } of expression.matchAll(TOKEN)) {
    if (found.verbose) throw new PatternError("the flag x is not supported");
    if (found.nested) throw new PatternError("nested classes are not supported; \\[ is the character");
    if (token === "(") groups.push(0);
    else if (token === ")" && groups.length > 1) {
      last = Math.max(1, groups.pop());
      groups[groups.length - 1] += last;
    } else if (found.least !== undefined) {
      const times = Math.max(1, Number(found.most || found.least || 0));
      groups[groups.length - 1] += last * (times - 1);
      last *= times;
    } else {
      last = 1;
      groups[groups.length - 1] += 1;
    }
  }
  return groups.reduce((one, other) => one + other, 0);
}

/** Parses an expression and builds its automaton: states that read a character, split, assert or accept. */
class Compiler {
  constructor(expression, ignoreCase) {
    this.text = Array.from(expression);
    this.at = 0;
    this.flags = { i: ignoreCase, s: false, m: false };
    this.states = [];
  }

  compile() {
    const tree = this.either(0);
    if (this.at < this.text.length) throw new PatternError("unopened group");
    const accept = this.state({ accept: true });
    return { states: this.states, start: this.build(tree, accept) };
  }

  state(made) {
    return this.states.push(made) - 1;
  }

  peek(text) {
    return this.text.slice(this.at, this.at + text.length).join("") === text;
  }

  skip(text) {
    const found = this.peek(text);
    if (found) this.at += text.length;
    return found;
  }

  either(depth) {
    if (depth > 100) throw new PatternError("exceeded the maximum number of nested parentheses/brackets (100)");
    const flags = { ...this.flags }, parts = [this.sequence(depth)];
    while (this.skip("|")) parts.push(this.sequence(depth));
    this.flags = flags;
    return parts.length === 1 ? parts[0] : { either: parts };
  }

  sequence(depth) {
    const parts = [];
    while (this.at < this.text.length && !this.peek("|") && !this.peek(")")) {
      const one = this.one(depth);
      if (one === null) continue;
      parts.push(this.repeated(one));
    }
    return { sequence: parts };
  }

  repeated(tree) {
    for (;;) {
      let least = 0, most = Infinity;
      if (this.skip("*")) least = 0;
      else if (this.skip("+")) least = 1;
      else if (this.skip("?")) most = 1;
      else if (this.peek("{")) [least, most] = this.counted();
      else return tree;
      this.skip("?");
      tree = { repeat: tree, least, most };
    }
  }

  counted() {
    const found = /^\{\s*(\d*)\s*(?:(,)\s*(\d*)\s*)?\}/.exec(this.text.slice(this.at).join(""));
    if (!found) {
      if (!this.text.slice(this.at).includes("}")) throw new PatternError("unclosed counted repetition");
      throw new PatternError("repetition quantifier expects a valid decimal");
    }
    if (found[1] === "") throw new PatternError("repetition quantifier expects a valid decimal");
    this.at += found[0].length;
    const least = Number(found[1]), most = found[2] ? (found[3] ? Number(found[3]) : Infinity) : least;
    if (least > most) throw new PatternError("invalid repetition count range, the start must be <= the end");
    return [least, most];
  }

  /** A character, class, group or assertion; null for flags. */
  one(depth) {
    const one = this.text[this.at++];
    switch (one) {
      case "(": return this.group(depth);
      case "[": return this.characters();
      case ".": return { reads: this.flags.s ? () => true : (each) => each !== "\n" };
      case "^": return { asserts: this.flags.m ? startsLine : startsText };
      case "$": return { asserts: this.flags.m ? endsLine : endsText };
      case "\\": return this.escape();
      case "*": case "+": case "?": case "{": throw new PatternError("repetition operator missing expression");
      default: return { reads: this.folded([[one, one]], false) };
    }
  }

  group(depth) {
    if (!this.skip("?")) return this.inside(depth);
    if (["=", "!", "<=", "<!"].some((each) => this.peek(each))) {
      throw new PatternError("look-around, including look-ahead and look-behind, is not supported");
    }
    if (this.skip("P<") || this.skip("<")) {
      const end = this.text.indexOf(">", this.at), name = this.text.slice(this.at, end).join("");
      if (end < 0) throw new PatternError("unclosed capture group name");
      if (!/^[\p{Alphabetic}_][\p{Alphabetic}\p{Nd}_.[\]]*$/u.test(name)) {
        throw new PatternError(name ? "invalid capture group character" : "empty capture group name");
      }
      this.at = end + 1;
      return this.inside(depth);
    }
    if (this.at === this.text.length) throw new PatternError("unclosed group");
    const set = { ...this.flags };
    let value = true;
    for (;;) {
      const one = this.text[this.at++];
      if (one === ":" || one === ")") {
        if (one === ")") {
          this.flags = set;
          return null;
        }
        const outside = this.flags;
        this.flags = set;
        const tree = this.inside(depth);
        this.flags = outside;
        return tree;
      }
      if (one === undefined) throw new PatternError("expected flag but got end of regex");
      if (one === "-") value = false;
      else if ("imsuUR".includes(one)) set[one] = value;
      else throw new PatternError("unrecognized flag");
    }
  }

  inside(depth) {
    const tree = this.either(depth + 1);
    if (!this.skip(")")) throw new PatternError("unclosed group");
    return tree;
  }

  escape() {
    const one = this.text[this.at++];
    if (one === undefined) throw new PatternError("incomplete escape sequence, reached end of pattern prematurely");
    if (one === "A") return { asserts: startsText };
    if (one === "z" || one === "Z") return { asserts: endsText };
    if (one === "b" || one === "B") {
      const wordly = (each) => each !== undefined && /[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\u200c\u200d]/u.test(each);
      return { asserts: (before, after) => (wordly(before) !== wordly(after)) === (one === "b") };
    }
    const set = CLASSES[one.toLowerCase()];
    if (set) return { reads: this.folded(this.ranges(set), one !== one.toLowerCase()) };
    const character = this.escaped(one);
    return { reads: this.folded([[character, character]], false) };
  }

  /** The ranges of a class that this file names. */
  ranges(set) {
    return {
      "0-9A-Za-z_": [["0", "9"], ["A", "Z"], ["a", "z"], ["_", "_"]],
      "0-9": [["0", "9"]],
      "\\t-\\r ": [["\t", "\r"], [" ", " "]],
    }[set];
  }

  /** The character that an escape stands for. */
  escaped(one) {
    if (one === "p" || one === "P") throw new PatternError(`named classes, \\${one}, are not supported`);
    if (one in ESCAPES) return String.fromCodePoint(ESCAPES[one]);
    if ("xuU".includes(one)) {
      const digits = { x: 2, u: 4, U: 8 }[one];
      const digit = "[0-9A-Fa-f]", rest = this.text.slice(this.at).join("");
      const found = new RegExp(`^(?:\\{(${digit}+)\\}|(${digit}{${digits}}))`).exec(rest);
      const code = found && parseInt(found[1] ?? found[2], 16);
      if (!found || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
        const problem = found ? "hexadecimal literal is not a Unicode scalar value" : "invalid hexadecimal digit";
        throw new PatternError(problem);
      }
      this.at += found[0].length;
      return String.fromCodePoint(code);
    }
    if (/[0-9]/.test(one)) throw new PatternError("backreferences are not supported");
    if (/[A-Za-z<>]/.test(one) || one > "\x7f") throw new PatternError("unrecognized escape sequence");
    return one;
  }

  characters() {
    const ranges = [], negated = this.skip("^"), denied = [];
    for (let first = true; ; first = false) {
      let one = this.text[this.at++];
      if (one === undefined) throw new PatternError("unclosed character class");
      if (one === "]" && !first) break;
      if ((one === "&" || one === "-" || one === "~") && this.text[this.at] === one) {
        throw new PatternError("operations on classes are not supported on this page");
      }
      if (one === "\\") {
        const escape = this.text[this.at++] ?? "", set = CLASSES[escape.toLowerCase()];
        if (set) {
          if (escape === escape.toLowerCase()) ranges.push(...this.ranges(set));
          else denied.push(this.ranges(set));
          continue;
        }
        one = this.escaped(escape);
      }
      let last = one;
      const following = this.text[this.at + 1];
      if (this.peek("-") && following !== "]" && following !== "-" && this.at + 1 < this.text.length) {
        this.at++;
        last = this.text[this.at++];
        if (last === "\\") last = this.escaped(this.text[this.at++] ?? "");
        if (last.codePointAt(0) < one.codePointAt(0)) {
          throw new PatternError("invalid character class range, the start must be <= the end");
        }
      }
      ranges.push([one, last]);
    }
    const plain = this.folded(ranges, false), others = denied.map((each) => this.folded(each, true));
    const reads = (each) => plain(each) || others.some((other) => other(each));
    return { reads: negated ? (each) => !reads(each) : reads };
  }

  /** Whether a character is in one of some ranges, or in another case if that does not matter. */
  folded(ranges, negated) {
    const within = (each) => {
      const code = each.codePointAt(0);
      return ranges.some(([from, to]) => code >= from.codePointAt(0) && code <= to.codePointAt(0));
    };
    const isWithin = (one) => Array.from(one).length === 1 && within(one);
    const cases = (each) => [each, each.toLowerCase(), each.toUpperCase()].some(isWithin);
    const reads = this.flags.i ? cases : within;
    return negated ? (each) => !reads(each) : reads;
  }

  /** Adds the states of a tree that continue at `next`; returns the first. */
  build(tree, next) {
    if (tree.either) return this.state({ split: tree.either.map((each) => this.build(each, next)) });
    if (tree.sequence) return tree.sequence.reduceRight((after, each) => this.build(each, after), next);
    if (!tree.repeat) return this.state({ ...tree, next });
    let after = next;
    if (tree.most === Infinity) {
      const loop = this.state({ split: [] });
      this.states[loop].split = [this.build(tree.repeat, loop), next];
      after = loop;
    } else {
      for (let times = tree.least; times < tree.most; times++) {
        after = this.state({ split: [this.build(tree.repeat, after), next] });
      }
    }
    for (let times = 0; times < tree.least; times++) after = this.build(tree.repeat, after);
    return after;
  }
}

/** Whether an automaton accepts some part of a text. */
function accepts({ states, start }, text) {
  const characters = Array.from(text, (each) => /^\p{Cs}$/u.test(each) ? "\ufffd" : each);
  const seen = new Int32Array(states.length).fill(-1);
  let active = [];
  for (let at = 0; at <= characters.length; at++) {
    const waiting = [start, ...active.map((each) => states[each].next)];
    const before = characters[at - 1], after = characters[at];
    active = [];
    while (waiting.length) {
      const number = waiting.pop();
      if (seen[number] === at) continue;
      seen[number] = at;
      const state = states[number];
      if (state.accept) return true;
      if (state.split) waiting.push(...state.split);
      else if (state.asserts) {
        if (state.asserts(before, after)) waiting.push(state.next);
      } else if (after !== undefined && state.reads(after)) active.push(number);
    }
  }
  return false;
}

function regularExpression(text, ignoreCase) {
  bounded(Array.from(text).length);
  const weight = bounded(weightOf(text));
  const named = /\\([pP])/.exec(text.replace(/\\[^pP]/gsu, ""));
  if (named) throw new PatternError(`named classes, \\${named[1]}, are not supported`);
  const automaton = new Compiler(text, ignoreCase).compile();
  return { matches: (found) => accepts(automaton, found), weight };
}

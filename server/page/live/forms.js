// Forms made from the schemas of the API's description: each field of a model, with its choices, limits and default.

const SUGGESTIONS = {
  error: ["WrongHost", "NoSuchSegment", "SegmentIsSealed", "SegmentIsTruncated", "SegmentAlreadyExists",
    "ConditionalCheckFailed", "InvalidEventNumber", "AuthTokenCheckFailed", "OperationUnsupported", "ErrorMessage"],
  status: ["UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "UNAUTHENTICATED", "PERMISSION_DENIED", "INTERNAL",
    "ABORTED", "NOT_FOUND"],
};
/** The first values of fields that have no default. */
const BEGINS = { error: "WrongHost", status: "UNAVAILABLE", delay_ms: 100, corrupt: 0, truncate: 0, answer: {},
  rate: 64, timeout: 1000, average_size: 64, bytes: 1024, delay: 100 };
const spaced = (name) => name.replaceAll("_", " ");

let described = null;

/** The schemas of the API's models, by name. They are requested once. */
function schemas() {
  described ??= ask("GET", "/v1/openapi.json", { patience: 30000 }).then((it) => it.components.schemas);
  described.catch(() => { described = null; });
  return described;
}

/** The models of which a schema takes one, however deep in it they are, each with the name that `nameOf` gives it. */
function modelsIn(all, schema, nameOf) {
  const union = (part) => part.oneOf ?? part.anyOf?.map(union).find(Boolean);
  return union(schema).map(({ $ref }) => all[$ref.split("/").at(-1)]).map((model) => [nameOf(model), model]);
}

const readJson = (text) => attempt(() => JSON.parse(text), text);

let fieldsMade = 0;

/** One field of a model, with its label and the place of its error. */
class Field {
  constructor(name, schema, isRequired = false, value = null) {
    const ways = schema.anyOf ?? [schema];  // a list is the most general one
    const used = ways.find((way) => way.type === "array") ?? ways.find((way) => way.type !== "null");
    const kind = used.enum ? "choice" : used.type, suggestions = SUGGESTIONS[name] ?? [], id = `field-${++fieldsMade}`;
    const input = element({ choice: "select", object: "textarea" }[kind] ?? "input", { name, autocomplete: "off" });
    const choices = kind === "choice" ? [...ways.length > 1 ? [""] : [], ...used.enum] : [];
    input.append(...choices.map((value) => element("option", { value }, spaced(value) || "—")));
    Object.assign(this, { input, kind, isNumber: kind === "integer" || kind === "number", isRequired });
    if (kind === "boolean") input.type = "checkbox";
    if (this.isNumber) Object.assign(input, { type: "number", step: "any" });
    if (suggestions.length) input.setAttribute("list", `${id}-list`);
    input.setAttribute("aria-describedby", id);
    this.problem = element("p", { className: "problem", id });
    this.root = element("div", { className: name === "match" ? "field wide" : "field" },
      element("label", null, spaced(name), input), this.problem,
      element("datalist", { id: `${id}-list` }, ...suggestions.map((value) => element("option", { value }))));
    this.usual = schema.default ?? (isRequired ? BEGINS[name] : choices[0]) ?? "";
    this.set(value);
  }

  complain(text) {
    put(this.problem, plain(text));
    this.input.ariaInvalid = text ? "true" : null;
  }

  set(value) {
    const shown = value ?? this.usual;
    if (this.kind === "boolean") this.input.checked = shown;
    else if (Array.isArray(shown)) this.input.value = shown.join(", ");
    else if (typeof shown !== "object") this.input.value = String(shown);
    else this.input.value = this.isRequired || Object.keys(shown).length ? JSON.stringify(shown) : "";
  }

  /** The value; undefined if it is empty. What cannot be read is text, so that the server tells all that is wrong. */
  get() {
    const { value, checked, validity } = this.input, text = validity.badInput ? "no number" : value.trim();
    if (this.kind === "boolean") return checked;
    if (!text) return undefined;
    if (this.kind === "array") return text.split(/[\s,]+/).filter(Boolean).map(readJson);
    return this.kind === "object" || this.isNumber ? readJson(text) : value;
  }
}

/** The fields of a model, without those named, and its description. */
class Fields {
  constructor(schema, { without = [], values = {} } = {}) {
    const names = Object.keys(schema.properties).filter((name) => !without.includes(name));
    Object.assign(this, { constants: {}, fields: new Map() });
    for (const name of names.sort((one, other) => (other === "match") - (one === "match"))) {  // a filter comes first
      const property = schema.properties[name], isRequired = schema.required?.includes(name);
      if ("const" in property) this.constants[name] = property.const;
      else this.fields.set(name, new Field(name, property, isRequired, values[name]));
    }
    const about = element("details", null, element("summary", null, "About these fields"),
      element("pre", null, schema.description));
    const inputs = Array.from(this.fields.values(), (field) => field.root);
    this.root = element("div", { className: "area" }, element("div", { className: "fields" }, ...inputs), about);
  }

  get() {
    const values = Array.from(this.fields, ([name, field]) => [name, field.get()]);
    return { ...this.constants, ...Object.fromEntries(values) };
  }
}

/** One of several models, [name, schema]: a select of their names, and the fields of the model that is selected. */
class Choice {
  constructor(name, models, [first] = models[0], values = {}) {
    this.models = models;
    this.select = new Field(name, { enum: models.map(([model]) => model) });
    this.area = element("div", { className: "area" });
    this.root = element("div", { className: "choice" }, this.select.root, this.area);
    this.select.input.addEventListener("change", () => this.choose(this.select.input.value));
    this.choose(first, values);
  }

  choose(name, values) {
    this.select.set(name);
    this.chosen = new Fields(this.models.find(([model]) => model === name)[1], { values });
    this.area.replaceChildren(this.chosen.root);
  }

  /** Its fields after their paths; errors of the whole are shown at the first one. */
  parts(path = "") {
    const fields = Array.from(this.chosen.fields, ([name, field]) => [path ? `${path}.${name}` : name, field]);
    return [[path, fields[0]?.[1] ?? this.select], ...fields];
  }
}

/**
 * A form in a panel. parts: returns its inputs after their paths, such as `do[0].fields`. send: sends them, and returns
 * what was done, as text. opener: gets the focus when the form is closed.
 */
class Editor {
  constructor(opener, { parts, send }) {
    Object.assign(this, { opener, parts, send, heading: element("h3"), area: element("div") });
    this.rest = element("p", { className: "problem", role: "alert" });
    this.submit = element("button", { className: "main" });
    this.root = element("form", { className: "editor", hidden: true, noValidate: true }, this.heading, this.area,
      this.rest, element("div", { className: "buttons" }, this.submit, button("Cancel", () => this.close())));
    onSubmit(this.root, () => this.try());
    this.root.addEventListener("keydown", ({ key }) => { if (key === "Escape") this.close(); });
  }

  /** Shows the form. label: of its button. content: its inputs. */
  open(title, label, ...content) {
    this.returnTo = document.activeElement;
    this.area.replaceChildren(...content);
    put(this.heading, plain(title));
    put(this.submit, label);
    this.complain([]);
    this.root.hidden = false;
    this.root.closest("details").open = true;
    this.root.scrollIntoView({ block: "nearest" });
    this.root.querySelector("input, select").focus();
  }

  close() {
    this.root.hidden = true;
    (this.returnTo.isConnected && this.returnTo !== document.body ? this.returnTo : this.opener).focus();
  }

  async try() {
    this.complain([]);
    const done = await trying(() => this.send(),
      (error) => this.complain(error.errors ?? [{ where: "", message: error.message }]));
    if (done === undefined) return;
    this.close();
    say(done);
    lookSoon(0);
  }

  /** Shows errors at their inputs, the first of which gets the focus, or else below all. */
  complain(errors) {
    const parts = this.parts(), rest = [], wrong = new Map();
    for (const { where, message } of errors) {
      const path = where.replace(/^body\.?/, "");
      const isAt = ([place]) => path === place || [".", "["].some((next) => path.startsWith(place + next));
      const [, part] = parts.findLast(isAt) ?? [];  // a field comes after what it is in
      if (part) wrong.set(part, [...wrong.get(part) ?? [], message]);
      else rest.push(message);
    }
    for (const [, part] of parts) part.complain(wrong.get(part)?.join("; ") ?? "");
    put(this.rest, plain(rest.join("; ")));
    parts.find(([, part]) => wrong.has(part))?.[1].input.focus();
  }
}

const opening = (open) => trying(async () => open(await schemas()));

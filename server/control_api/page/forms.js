// Forms made from the schemas of the API's description: each field of a model, with its choices, limits and default.

/** An input cannot be read. where: the path of its field, such as `do[0].fields`. */
class Wrong extends Error {
  constructor(text, where) {
    super(text);
    this.where = where;
  }
}

let described = null;

/** The schemas of the API's models, by name. They are requested once. */
function schemas() {
  described ??= ask("GET", "/v1/openapi.json").then((it) => it.components.schemas);
  described.catch(() => { described = null; });
  return described;
}
const referred = (all, { $ref }) => all[$ref.split("/").at(-1)];

/** The models of which a schema takes one, however deep in it they are. */
const modelsIn = (schema) => schema.oneOf ?? schema.anyOf?.map(modelsIn).find(Boolean);

let fieldsMade = 0;

/** One field of a model: a labelled input and the place of its error. */
class Field {
  constructor(path, schema, isRequired, options = {}) {
    const { label = schema.title, suggestions = [], className = "", placeholder = "" } = options;
    this.path = path;
    this.isRequired = isRequired;
    this.usual = schema.default;
    const ways = schema.anyOf ?? [schema];  // a list is the most general one
    this.schema = ways.find((each) => each.type === "array") ?? ways.find((each) => each.type !== "null");
    this.isOptional = ways.some((each) => each.type === "null");
    const id = `field-${++fieldsMade}`;
    this.input = this.makeInput(id, className);
    if (placeholder) this.input.placeholder = placeholder;
    this.problem = element("p", { className: "problem", id: `${id}-problem` });
    this.input.setAttribute("aria-describedby", this.problem.id);
    const list = element("datalist", { id: `${id}-list` }, ...suggestions.map((value) => element("option", { value })));
    if (suggestions.length) this.input.setAttribute("list", list.id);
    const isCheck = this.input.type === "checkbox";
    const labelled = isCheck ? [this.input, ` ${label}`] : [label, this.input];
    this.root = element("div", { className: `field ${className}` },
      element("label", { className: isCheck ? "row" : "" }, ...labelled), this.problem, list);
    this.set(undefined);
  }

  get kind() {
    if (this.schema.enum) return "choice";
    return this.schema.type;
  }

  makeInput(id, className) {
    const { minimum, maximum, maxLength } = this.schema, name = this.path.split(".").at(-1);
    if (this.kind === "choice") {
      const none = this.isOptional ? [element("option", { value: "" }, "—")] : [];
      return element("select", { id, name }, ...none, ...this.schema.enum.map((each) => element("option", null, each)));
    }
    if (this.kind === "boolean") return element("input", { id, name, type: "checkbox" });
    if (this.kind === "object") return element("textarea", { id, name, rows: 2, spellcheck: false, placeholder: "{}" });
    const shared = { id, name, autocomplete: "off", spellcheck: false };
    if (this.kind === "integer" || this.kind === "number") {
      const limits = Object.entries({ min: minimum, max: maximum }).filter(([, value]) => value !== undefined);
      const step = this.kind === "integer" ? "1" : "any";
      return element("input", { ...shared, type: "number", step, ...Object.fromEntries(limits) });
    }
    const long = className.includes("wide") ? { className: "long" } : {};
    return element("input", { ...shared, ...long, ...(maxLength ? { maxLength } : {}) });
  }

  set(value) {
    const shown = value === undefined || value === null ? this.usual : value;
    if (this.kind === "boolean") this.input.checked = Boolean(shown);
    else if (shown === undefined || shown === null) this.input.value = "";
    else if (this.kind === "object") {
      this.input.value = this.isRequired || Object.keys(shown).length ? JSON.stringify(shown) : "";
    }
    else this.input.value = Array.isArray(shown) ? shown.join(", ") : String(shown);
    this.complain("");
  }

  /** The value; undefined if it is empty. Throws Wrong. */
  get() {
    if (this.kind === "boolean") return this.input.checked;
    const text = this.input.value.trim();
    if (this.input.validity.badInput) throw new Wrong("This is not a number.", this.path);
    if (!text && this.isRequired) throw new Wrong("A value is needed.", this.path);
    if (!text) return undefined;
    if (this.kind === "integer" || this.kind === "number") return Number(text);
    if (this.kind === "array") return text.split(/[\s,]+/).filter(Boolean).map((each) => this.item(each));
    return this.kind === "object" ? this.object(text) : this.input.value;
  }

  item(text) {
    if (!/^-?\d+$/.test(text)) throw new Wrong(`“${text}” is not a number.`, this.path);
    return Number(text);
  }

  object(text) {
    try {
      return JSON.parse(text);
    } catch (error) {
      throw new Wrong(`This is not JSON: ${error.message}`, this.path);
    }
  }

  complain(text) {
    put(this.problem, plain(text));
    if (text) this.input.setAttribute("aria-invalid", "true");
    else this.input.removeAttribute("aria-invalid");
  }
}

/** The fields of a model. prefix: of their paths. options: by the name of a field. names: which ones, in this order. */
class Fields {
  constructor(schema, { prefix = "", options = {}, names = null } = {}) {
    this.constants = {};
    this.fields = new Map();
    this.root = element("div", { className: "fields" });
    for (const name of names ?? Object.keys(schema.properties)) {
      const property = schema.properties[name];
      if ("const" in property) {
        this.constants[name] = property.const;
        continue;
      }
      const field = new Field(`${prefix}${name}`, property, schema.required?.includes(name), options[name]);
      this.fields.set(name, field);
      this.root.append(field.root);
    }
  }

  set(values) {
    for (const [name, field] of this.fields) field.set(values[name]);
  }

  get() {
    const found = { ...this.constants };
    for (const [name, field] of this.fields) {
      const value = field.get();
      if (value !== undefined) found[name] = value;
    }
    return found;
  }
}

/**
 * One of several models, chosen by its name: a select, and the fields of the model that is selected.
 *
 * models: [name, label, schema, options of its fields, the names of those that come last]. path: of the whole, with its
 * error. label: of the select.
 */
class Choice {
  constructor(models, path, label) {
    this.models = models;
    this.path = path;
    this.select = element("select", null, ...models.map(([value, text]) => element("option", { value }, text)));
    this.problem = element("p", { className: "problem", id: `field-${++fieldsMade}-problem` });
    this.select.setAttribute("aria-describedby", this.problem.id);
    this.area = element("div", { className: "area" });
    this.root = element("div", { className: "choice" },
      element("div", { className: "field" }, element("label", null, label, this.select)), this.area, this.problem);
    this.select.addEventListener("change", () => this.choose(this.select.value));
    this.choose(models[0][0]);
  }

  /** Shows the fields of a model. values: of these. */
  choose(name, values = {}) {
    const [, , schema, options, last = []] = this.models.find(([each]) => each === name);
    const all = Object.keys(schema.properties), first = all.filter((each) => !last.includes(each));
    const names = [...first, ...last.filter((each) => all.includes(each))];
    this.select.value = name;
    this.chosen = new Fields(schema, { prefix: this.path && `${this.path}.`, options, names });
    this.chosen.set(values);
    this.area.replaceChildren(this.chosen.root);
    this.complain("");
  }

  /** Changes the path, because one before it in its list was removed. */
  move(path) {
    this.path = path;
    for (const [name, field] of this.chosen.fields) field.path = `${path}.${name}`;
  }

  get() {
    return this.chosen.get();
  }

  get input() {
    return this.select;
  }

  complain(text) {
    put(this.problem, plain(text));
    if (text) this.select.setAttribute("aria-invalid", "true");
    else this.select.removeAttribute("aria-invalid");
  }

  all() {
    return [this, ...this.chosen.fields.values()];
  }
}

/** Shows an error at its field, which gets the focus, or else in `rest`. parts: the fields and choices of a form. */
function complainAt(parts, error, rest) {
  for (const each of parts) each.complain("");
  put(rest, "");
  if (error === null) return;
  const where = error.where.replace(/^body\.?/, ""), text = error.message;
  const isIn = (path) => where === path || where.startsWith(`${path}.`) || where.startsWith(`${path}[`);
  const place = parts.filter((each) => isIn(each.path))
    .sort((one, other) => other.path.length - one.path.length)[0];
  if (place === undefined) {
    put(rest, plain(text));
    return;
  }
  place.complain(text);
  place.input.focus();
}

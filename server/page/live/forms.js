// Forms made from the schemas of the API's description: each field of a model, with its choices, limits and default.

let described = null;

/** The schemas of the API's models, by name. They are requested once. */
function schemas() {
  described ??= ask("GET", "/v1/openapi.json", { patience: 30000 }).then((it) => it.components.schemas);
  described.catch(() => { described = null; });
  return described;
}

/** The models of which a schema takes one, however deep in it they are. */
function modelsIn(all, schema) {
  const union = (part) => part.oneOf ?? part.anyOf?.map(union).find(Boolean);
  return union(schema).map(({ $ref }) => all[$ref.split("/").at(-1)]);
}

let fieldsMade = 0;

/** An input of a form, with its label and the place of its error. path: of its value, such as `do[0].fields`. */
class Part {
  constructor(path, label, input, className = "") {
    Object.assign(this, { path, input });
    const id = `field-${++fieldsMade}`, isCheck = input.type === "checkbox";
    this.problem = element("p", { className: "problem", id: `${id}-problem` });
    input.setAttribute("aria-describedby", this.problem.id);
    this.root = element("div", { className: `field ${className}` },
      element("label", isCheck ? { className: "row" } : null, ...isCheck ? [input, ` ${label}`] : [label, input]),
      this.problem);
  }

  complain(text) {
    put(this.problem, plain(text));
    mark(this.input, text);
  }
}

function readJson(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** One field of a model. options: `label`, `suggestions`, `className`, `placeholder`, and `begins`, a first value. */
class Field extends Part {
  constructor(path, schema, isRequired, options = {}) {
    const ways = schema.anyOf ?? [schema];  // a list is the most general one
    const used = ways.find((way) => way.type === "array") ?? ways.find((way) => way.type !== "null");
    const { label = schema.title, suggestions = [], className = "", placeholder = "" } = options;
    const kind = used.enum ? "choice" : used.type, isOptional = ways.some((way) => way.type === "null");
    const begins = isRequired ? options.begins ?? suggestions[0] : undefined;
    const input = element({ choice: "select", object: "textarea" }[kind] ?? "input", { name: path.split(".").at(-1) });
    super(path, label, input, className);
    Object.assign(this, { kind, isRequired, usual: schema.default ?? begins });
    if (kind === "choice") input.append(...[...isOptional ? [""] : [], ...used.enum].map((value) =>
      element("option", { value }, value || "—")));
    else if (kind === "boolean") input.type = "checkbox";
    else Object.assign(input, { autocomplete: "off", spellcheck: false, placeholder, required: isRequired });
    if (kind === "object") Object.assign(input, { rows: 2, placeholder: "{}" });
    if (this.isNumber) Object.assign(input, { type: "number", step: "any" });
    if (used.maxLength) input.maxLength = used.maxLength;
    if (className.includes("wide")) input.className = "long";
    if (suggestions.length) {
      const id = `${this.problem.id}-list`, values = suggestions.map((value) => element("option", { value }));
      input.setAttribute("list", id);
      this.root.append(element("datalist", { id }, ...values));
    }
    this.set(undefined);
  }

  get isNumber() {
    return this.kind === "integer" || this.kind === "number";
  }

  set(value) {
    const shown = value ?? this.usual ?? "";
    if (this.kind === "boolean") this.input.checked = Boolean(shown);
    else if (Array.isArray(shown)) this.input.value = shown.join(", ");
    else if (typeof shown !== "object") this.input.value = String(shown);
    else this.input.value = this.isRequired || Object.keys(shown).length ? JSON.stringify(shown) : "";
    this.complain("");
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

/** The fields of a model. prefix: of their paths. options: by the name of a field. names: which ones, in this order. */
class Fields {
  constructor(schema, { prefix = "", options = {}, names = Object.keys(schema.properties) } = {}) {
    this.constants = {};
    this.fields = new Map();
    for (const name of names) {
      const property = schema.properties[name], isRequired = schema.required?.includes(name);
      if ("const" in property) this.constants[name] = property.const;
      else this.fields.set(name, new Field(`${prefix}${name}`, property, isRequired, options[name]));
    }
    this.root = element("div", { className: "fields" }, ...Array.from(this.fields.values(), (field) => field.root));
  }

  set(values) {
    for (const [name, field] of this.fields) field.set(values[name]);
  }

  get() {
    const values = Array.from(this.fields, ([name, field]) => [name, field.get()]);
    return { ...this.constants, ...Object.fromEntries(values) };
  }
}

/**
 * One of several models, chosen by its name: a select, and the fields of the model that is selected.
 *
 * models: [name, label, schema, options of its fields, the names of those that come last]. path: of the whole.
 */
class Choice extends Part {
  constructor(models, path, label) {
    super(path, label, element("select", null, ...models.map(([value, text]) => element("option", { value }, text))));
    this.models = models;
    this.area = element("div", { className: "area" });
    this.root = element("div", { className: "choice" }, this.root, this.area);
    this.input.addEventListener("change", () => this.choose(this.input.value));
    this.choose(models[0][0]);
  }

  /** Shows the fields of a model. values: of these. */
  choose(name, values = {}) {
    const [, , schema, options, last = []] = this.models.find(([model]) => model === name);
    const all = Object.keys(schema.properties), first = all.filter((property) => !last.includes(property));
    const names = [...first, ...last.filter((property) => all.includes(property))];
    this.input.value = name;
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

  /** The part at which an error of the whole is shown: its first field, or those of a reply if it names one. */
  placeOf(message) {
    const { fields } = this.chosen;
    return (/^[A-Z_]+\.\w+: /.test(message) && fields.get("fields")) || fields.values().next().value || this;
  }

  parts() {
    return [this, ...this.chosen.fields.values()];
  }
}

/** A form in a panel. Its owner sets `parts()`, its inputs, and `send()`, which returns what was done, as text. */
class Editor {
  constructor(area, opener) {
    this.opener = opener;
    this.heading = element("h3");
    this.rest = element("p", { className: "problem", role: "alert" });
    this.submit = element("button", { className: "main" });
    this.root = element("form", { className: "editor", hidden: true, noValidate: true }, this.heading, area, this.rest,
      element("div", { className: "buttons" }, this.submit, button("Cancel", () => this.close())));
    this.root.addEventListener("submit", (event) => {
      event.preventDefault();
      this.try();
    });
    this.root.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.close();
    });
  }

  /** Shows the form. title: its heading. label: of its button. */
  open(title, label) {
    this.returnTo = document.activeElement;
    put(this.heading, plain(title));
    put(this.submit, label);
    this.complain([]);
    this.root.hidden = false;
    this.root.closest("details").open = true;
    this.root.scrollIntoView({ block: "nearest" });
    this.parts()[0].input.focus();
  }

  close() {
    this.root.hidden = true;
    (this.returnTo.isConnected && this.returnTo !== document.body ? this.returnTo : this.opener).focus();
  }

  async try() {
    this.complain([]);
    try {
      say(await this.send());
    } catch (error) {
      if (!(error instanceof Refused || error instanceof Gone)) throw error;
      this.complain(error.errors ?? [{ where: "", message: error.message }]);
      return;
    }
    this.close();
    lookSoon(0);
  }

  /** Shows errors at their fields, the first of which gets the focus, or else below all. */
  complain(errors) {
    const parts = this.parts(), rest = [], wrong = new Map();
    for (const { where, message } of errors) {
      const path = where.replace(/^body\.?/, "");
      const isIn = (part) => path === part.path || [".", "["].some((mark) => path.startsWith(part.path + mark));
      const place = parts.filter(isIn).sort((one, other) => other.path.length - one.path.length)[0];
      const part = place?.path === path ? place.placeOf?.(message) ?? place : place;
      if (part) wrong.set(part, [...wrong.get(part) ?? [], message]);
      else rest.push(message);
    }
    for (const part of parts) part.complain(wrong.get(part)?.join("; ") ?? "");
    put(this.rest, plain(rest.join("; ")));
    parts.find((part) => wrong.has(part))?.input.focus();
  }
}

/** Opens a form; failures to load it are shown above all panels. */
async function opening(open) {
  try {
    await open(await schemas());
  } catch (error) {
    if (!(error instanceof Refused || error instanceof Gone)) throw error;
    say(error.message, true);
  }
}

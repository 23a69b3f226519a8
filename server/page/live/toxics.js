// The panel of toxics, with a form for their attributes.

/** The form of a toxic. It is filled when it is opened, from the schemas. */
class ToxicForm extends Editor {
  constructor(opener) {
    const area = element("div");
    super(area, opener);
    this.area = area;
  }

  edit(all) {
    const models = modelsIn(all, all.ActiveToxic.properties.toxic, (model) => model.properties.type.const);
    this.choice = new Choice(models, "type");
    this.area.replaceChildren(this.choice.root);
    this.open("New toxic", "Add toxic");
  }

  parts() {
    return this.choice.parts();
  }

  async send() {
    return `${(await ask("POST", "/v1/toxics", { body: this.choice.chosen.get() })).name} was added.`;
  }
}

const newToxic = button("New toxic", () => opening((all) => toxicForm.edit(all)));
const toxicForm = new ToxicForm(newToxic);

addTable({
  id: "toxics",
  title: "Toxics",
  tools: element("div", null, element("div", { className: "buttons" }, newToxic), toxicForm.root),
  needs: "toxics",
  columns: [
    ["Toxic", (each) => each.name, "w"],
    ["Type", (each) => each.toxic.type],
    ["Direction", (each) => each.toxic.stream ?? "both"],
    ["Attributes", ({ toxic: { type, name, stream, ...attributes } }) => settingsText(attributes), "w"],
    ["Connections", (each) => number(each.connections), "n"],
    ["Actions", null, "buttons",
      [change("Remove", "DELETE", "/v1/toxics/{name}", (each) => `${each.name} was removed.`)]],
  ],
  keyOf: (each) => each.name,
  async rows({ count }) {
    const { toxics } = await ask("GET", "/v1/toxics");
    count(number(toxics.length));
    return toxics;
  },
});

// The panel of toxics, with a form for their attributes.

const newToxic = button("New toxic", () => opening((all) => {
  const models = modelsIn(all, all.ActiveToxic.properties.toxic, (model) => model.properties.type.const);
  toxicForm.choice = new Choice("type", models);
  toxicForm.open("New toxic", "Add toxic", toxicForm.choice.root);
}));
const toxicForm = new Editor(newToxic, {
  parts: () => toxicForm.choice.parts(),
  async send() {
    return `${(await ask("POST", "/v1/toxics", { body: toxicForm.choice.chosen.get() })).name} was added.`;
  },
});

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

// The drawer: one request, or one record, in detail.

const drawerTitle = element("h2", { id: "drawer-title", tabIndex: -1 });
const drawerTools = element("div", { className: "buttons" }, button("Close", () => drawer.close()));
const drawerSaid = element("p", { id: "drawer-said", role: "status" });
const drawerParts = element("div");
const drawer = element("dialog", { id: "drawer", "aria-labelledby": "drawer-title" },
  element("div", { className: "top" }, drawerTitle, drawerTools), drawerSaid, drawerParts);

function showInDrawer(title, parts) {
  put(drawerTitle, title);
  drawerParts.replaceChildren(...parts.filter(Boolean));
}

// The panels of connections and of containers.

addTable({
  id: "connections",
  title: "Connections",
  columns: [
    ["Number", (each) => each.number ?? "", "n"],
    ["Store", (each) => each.store, "n"],
    ["Peer", (each) => each.admin ? `${each.peer} (admin)` : each.peer],
    ["Writers", (each) => number(each.writers), "n"],
    ["Waiting reads", (each) => number(each.waiting_reads), "n x"],
    ["Bytes in", (each) => number(each.bytes_in), "n"],
    ["Bytes out", (each) => number(each.bytes_out), "n"],
    ["Bytes held", (each) => number(each.held_bytes), "n x"],
    ["Actions", (each, cell) => { cell.firstElementChild.disabled = each.number === null; }, "buttons",
      [change("Close", "DELETE", "/v1/connections/{number}", (each) => `The connection of ${each.peer} was closed.`)]],
  ],
  keyOf: (each) => `${each.store} ${each.number} ${each.peer}`,
  async rows({ count, note }) {
    const { total, connections } = await ask("GET", "/v1/connections", { query: { limit: 200 } });
    count(number(total));
    note(total > connections.length ? `The first ${connections.length} are shown.` : "");
    return connections;
  },
});

addTable({
  id: "containers",
  title: "Containers",
  needs: "containers",
  columns: [
    ["Container", (each) => each.container, "n"],
    ["Store", (each) => each.store ?? (each.address ? "elsewhere" : "none"), "n"],
    ["Address", (each) => each.address ?? ""],
    ["Segments", (each) => each.open ? number(each.segments) : "", "n"],
    ["Move to store", offer, "buttons", [() => element("select"), rowButton("Move", move)]],
  ],
  keyOf: (each) => each.container,
  async rows({ count, note }) {
    const { containers, movable, stores } = await ask("GET", "/v1/containers");
    count(number(containers.length));
    note(movable ? "" : "They cannot be moved from here: this takes several stores in one process.");
    return containers.map((each) => ({ ...each, stores: movable ? stores : 0 }));
  },
});

/** Offers the stores that a container can be moved to. */
function offer({ container, store, stores }, cell) {
  const [select, go] = cell.children;
  select.hidden = go.hidden = !stores;
  if (select.options.length === stores) return;
  select.setAttribute("aria-label", `Store that container ${container} is to move to`);
  select.replaceChildren(...Array.from({ length: stores }, (_, index) => element("option", null, String(index))));
  select.value = String(store ?? 0);
}

function move(each, row) {
  const to = Number(row.querySelector("select").value);
  return act(() => ask("POST", "/v1/containers/{container}/move", { parts: each, body: { to } }),
    () => `Container ${each.container} was moved to store ${to}.`);
}

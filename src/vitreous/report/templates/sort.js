for (const table of document.querySelectorAll('table.sortable')) {
  const heads = table.tHead.rows[table.tHead.rows.length - 1].cells;
  [...heads].forEach((head, column) => {
    const button = document.createElement('button');
    button.append(...head.childNodes); head.append(button);
    button.addEventListener('click', () => {
      const down = head.getAttribute('aria-sort') === 'ascending';
      for (const other of heads) other.removeAttribute('aria-sort');
      head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
      const key = row => row.cells[column].dataset.v;
      const rows = [...table.tBodies[0].rows].sort((a, b) => {
        const x = key(a), y = key(b);
        if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
        const gap = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
        return down ? -gap : gap;
      });
      table.tBodies[0].append(...rows);
    });
  });
}

for (const table of document.querySelectorAll('table.sortable')) {
  const heads = table.tHead.rows[table.tHead.rows.length - 1].cells;
  [...heads].forEach((head, column) => {
    const button = document.createElement('button');
    button.append(...head.childNodes); head.append(button);
    button.addEventListener('click', () => {
      const descending = head.getAttribute('aria-sort') === 'ascending';
      for (const other of heads) other.removeAttribute('aria-sort');
      head.setAttribute('aria-sort', descending ? 'descending' : 'ascending');
      const getValue = row => row.cells[column].dataset.v;
      const rows = [...table.tBodies[0].rows].sort((a, b) => {
        const x = getValue(a), y = getValue(b);
        if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
        const difference = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
        return descending ? -difference : difference;
      });
      table.tBodies[0].append(...rows);
    });
  });
}

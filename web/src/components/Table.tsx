// A plain table for lists of up to a few hundred rows. At phone width it shows only the columns that matter there.

export interface Column<T> {
  name: string;
  /** Its width, as a track of a CSS grid. */
  size: string;
  cell: (row: T) => React.ReactNode;
  /** Left out at phone width. */
  wide?: boolean;
}

export function Table<T>({ label, columns, rows, keyOf }: {
  label: string; columns: Column<T>[]; rows: T[]; keyOf: (row: T) => string;
}) {
  const sizes = (shown: Column<T>[]): string => shown.map((column) => column.size).join(" ");
  const tracks = { "--tracks": sizes(columns), "--tracks-phone": sizes(columns.filter((column) => !column.wide)) } as React.CSSProperties;
  return (
    <div className="grid-table" role="table" aria-label={label} style={tracks}>
      <div role="row" className="head">
        {columns.map((column) => <span key={column.name} role="columnheader" className={column.wide ? "wide" : ""}>{column.name}</span>)}
      </div>
      {rows.map((row) => (
        <div key={keyOf(row)} role="row" aria-label={keyOf(row)}>
          {columns.map((column) => <span key={column.name} role="cell" className={column.wide ? "wide" : ""}>{column.cell(row)}</span>)}
        </div>
      ))}
    </div>
  );
}

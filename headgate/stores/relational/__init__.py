"""What the stores on a relational database share: the same operations over the same tables.

Each dialect has its SQL in `.sql` files of the same names, with the same statements in them;
an operation reaches them through its transaction (`tx.sql.finish.running`).
"""

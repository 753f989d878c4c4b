"""`headgate demo`: limits hold while three tenants press and a worker is killed."""

from tests.postgres.fixtures import empty_database, postgres, postgres_url

__all__ = ["empty_database", "postgres", "postgres_url"]

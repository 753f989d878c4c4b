from tests.postgres.fixtures import bounced_url, empty_database, postgres, postgres_url

__all__ = ["bounced_url", "empty_database", "postgres", "postgres_url"]

-- Row types are for PostgreSQL only. The versions of both schemas go together.
SELECT 1;

-- The store: tables, rights and row-level security of database `meridian`, in one place.
--
-- Run as meridian_owner, in one transaction, at every start of the operator. Idempotent, and safe when two
-- operators start at once: the advisory lock makes the second wait and find everything done. What exists is left
-- untouched (no lock on a table that serves): a policy or trigger that changes gets a new name.
--
-- Isolation in three layers, each sufficient alone: every query names its tenant; every table with a tenant has
-- forced row-level security on a transaction-local setting (unset or '' gives no row); chunks lie in a partition
-- for each tenant and epoch. Every key begins with tenant_id, so that no constraint tells about another tenant.

select pg_advisory_xact_lock(hashtextextended('meridian.schema', 0));
set local lock_timeout = '10s';
set local client_min_messages = warning;

create schema if not exists meridian;
revoke all on schema meridian from public;
grant usage on schema meridian to meridian_app, meridian_ingest, meridian_evidence;
do $$ begin execute format('revoke temporary on database %I from public', current_database()); end $$;

-- ---------------------------------------------------------------------------------------------- index

-- One build of an index. No tenant's data: names, counts and hashes only.
create table if not exists meridian.epochs (
  name               text primary key,
  uid                text not null,            -- of the IndexEpoch: the same name used again is another epoch
  state              text not null default 'building' check (state in ('building', 'built', 'failed')),
  embedding_model    text not null,            -- model@revision; queries must use the same
  dimension          integer not null,
  chunker            text not null,
  normaliser         text not null,
  shards             integer not null default 1,
  documents          bigint not null default 0,
  documents_total    bigint not null default 0,
  chunks             bigint not null default 0,
  bad_lines          bigint not null default 0,
  corpus_fingerprint text not null default '',
  golden_digest      text not null default '',
  recall_at_6        double precision,         -- null: no golden set was given
  error              text not null default '',
  started_at         timestamptz not null default now(),
  updated_at         timestamptz not null default now(),
  built_at           timestamptz
);

-- How far each completion of the Indexed Job is.
create table if not exists meridian.epoch_shards (
  epoch      text not null references meridian.epochs (name) on delete cascade,
  shard      integer not null,
  state      text not null default 'running' check (state in ('running', 'done', 'failed')),
  error      text not null default '',
  updated_at timestamptz not null default now(),
  primary key (epoch, shard)
);

create table if not exists meridian.epoch_sources (
  tenant_id       text not null check (tenant_id <> ''),
  epoch           text not null,
  source          text not null,
  shard           integer not null,
  documents       bigint not null default 0,   -- published or found up to date
  documents_total bigint not null default 0,   -- of this shard
  chunks          bigint not null default 0,
  embedded        bigint not null default 0,   -- chunks whose vectors this run had to make
  bad_lines       bigint not null default 0,
  error           text not null default '',    -- names the source and the line, never its text
  updated_at      timestamptz not null default now(),
  primary key (tenant_id, epoch, source, shard)
);

-- The pointer: which version of a document is current. Readers join through it, so a version appears by one row.
create table if not exists meridian.documents (
  tenant_id       text not null check (tenant_id <> ''),
  epoch           text not null,
  doc_id          text not null,
  current_version bigint not null check (current_version >= 0),
  acl_groups      text[] not null default '{}',  -- empty: visible to nobody
  source          text not null default '',
  content_hash    text not null,                 -- of what is embedded; equal means nothing to do
  chunk_count     integer not null,
  deleted         boolean not null default false,
  published_at    timestamptz not null default now(),
  primary key (tenant_id, epoch, doc_id)
);

-- Texts at their versions, kept for provenance: a citation opens its source as it was cited.
create table if not exists meridian.document_versions (
  tenant_id    text not null check (tenant_id <> ''),
  epoch        text not null,
  doc_id       text not null,
  version      bigint not null,
  title        text not null,
  source_uri   text not null,
  body         text not null,
  content_hash text not null,
  published_at timestamptz not null default now(),
  primary key (tenant_id, epoch, doc_id, version)
);

create table if not exists meridian.chunks (
  tenant_id       text not null check (tenant_id <> ''),
  epoch           text not null,
  doc_id          text not null,
  version         bigint not null,
  ordinal         integer not null,
  chunk_id        text not null,
  title           text not null,
  source_uri      text not null,
  anchor          text not null,                 -- the heading above the chunk, as a slug
  body            text not null,                 -- shown unchanged
  acl_groups      text[] not null,
  embedding       vector not null,
  embedding_model text not null,
  tsv             tsvector not null,
  primary key (tenant_id, epoch, doc_id, version, ordinal)
) partition by list (tenant_id);
create index if not exists chunks_tsv on meridian.chunks using gin (tsv);
-- No index on the vectors, on purpose: up to some 20,000 chunks of one tenant and epoch the exact scan is fast and
-- complete, and a planner that may choose HNSW under a filter can return nothing at all (pgvector#751).

-- ---------------------------------------------------------------------------------------------- evidence

create table if not exists meridian.request_records (
  tenant_id           text not null check (tenant_id <> ''),
  request_id          text not null,
  conversation_id     text not null default '',
  subject_hash        text not null default '',
  service             text not null default '',
  region              text not null default '',
  release             text not null,
  arm                 text not null check (arm in ('serving', 'candidate', 'evaluation', 'shadow')),
  generation          bigint not null,
  app_version         text not null default '',
  prompt              text not null default '',
  model               text not null default '',
  target_region       text not null default '',
  epoch               text not null default '',
  embedding_model     text not null default '',
  tools               jsonb not null default '{}',   -- name to schema version
  tool_outcome        text not null default '',
  canary_eligible     boolean not null default false,
  cache_hit           boolean not null default false,
  state               text not null check (state in ('answered', 'degraded', 'error', 'refused', 'cancelled')),
  stream_state        text not null default '',      -- where its stream ended: terminal | incomplete | cancelled | ...
  error_code          text not null default '',
  degraded            text not null default 'full',  -- step of the ladder
  abstained           boolean not null default false,
  input_tokens        bigint not null default 0,
  output_tokens       bigint not null default 0,
  cached_input_tokens bigint not null default 0,
  usage_estimated     boolean not null default false,
  cost_usd            numeric(18, 9) not null default 0,
  ttft_ms             double precision,
  total_ms            double precision,
  stage_ms            jsonb not null default '{}',
  retrieved           jsonb not null default '[]',   -- ["doc@version#chunk", ...], best first
  citations           jsonb not null default '[]',   -- ["doc@version#chunk", ...] as sent
  citations_total     integer not null default 0,
  citations_invalid   integer not null default 0,
  uncited_claims      boolean not null default false,
  stale_config        boolean not null default false,
  traceparent         text not null default '',
  started_at          timestamptz not null default now(),  -- never after the database's own time of writing
  finished_at         timestamptz,
  primary key (tenant_id, request_id)
);
create index if not exists request_records_evidence on meridian.request_records (release, arm, started_at);

-- One judgement for each request. A later sign of failure may overturn a success; nothing counts twice.
create table if not exists meridian.outcomes (
  tenant_id     text not null check (tenant_id <> ''),
  request_id    text not null,
  success       boolean not null,
  signal        text not null check (signal in
                  ('resolved', 'unresolved', 'escalated', 'reopened', 'thumbs_up', 'thumbs_down', 'judge')),
  judged_at     timestamptz not null default now(),
  overturned_at timestamptz,
  primary key (tenant_id, request_id),
  foreign key (tenant_id, request_id) references meridian.request_records (tenant_id, request_id)
);

create table if not exists meridian.tool_audit (
  tenant_id        text not null check (tenant_id <> ''),
  audit_id         uuid not null default gen_random_uuid(),
  request_id       text not null,
  subject_hash     text not null default '',
  tool             text not null,
  schema_version   text not null default '',
  outcome          text not null,               -- ok | not_found | denied | invalid | timeout | unavailable
  arguments_hash   text not null default '',    -- arguments may be personal data: a hash only
  duration_ms      double precision,
  at               timestamptz not null default now(),
  primary key (tenant_id, audit_id)
);

-- Written by the evaluation Job; read by the operator.
create table if not exists meridian.evaluation_reports (
  release_uid text not null,
  attempt     bigint not null,
  kind        text not null check (kind in ('offline', 'security')),
  release     text not null,
  report      jsonb not null,
  created_at  timestamptz not null default now(),
  primary key (release_uid, attempt, kind)
);

-- ---------------------------------------------------------------------------------------------- publishing

-- Versions only grow, whoever writes and in whatever order events come.
create or replace function meridian.refuse_older_version() returns trigger
language plpgsql set search_path = pg_catalog, meridian as $$
begin
  if new.current_version < old.current_version then
    raise exception 'document version % is superseded by %', new.current_version, old.current_version
      using errcode = 'integrity_constraint_violation';
  end if;
  return new;
end $$;

-- A pointer moves only to a version whose chunks are all there, and what it leaves behind goes with it: a reader sees
-- the old version or the new one, whole.
create or replace function meridian.complete_publication() returns trigger
language plpgsql set search_path = pg_catalog, meridian as $$
declare
  found_chunks bigint;
begin
  delete from meridian.chunks c
   where c.tenant_id = new.tenant_id and c.epoch = new.epoch and c.doc_id = new.doc_id
     and (new.deleted or c.version <> new.current_version);
  if new.deleted then
    return null;
  end if;
  select count(*) into found_chunks from meridian.chunks c
   where c.tenant_id = new.tenant_id and c.epoch = new.epoch and c.doc_id = new.doc_id
     and c.version = new.current_version;
  if found_chunks <> new.chunk_count then
    raise exception 'document has % chunks, its manifest says %', found_chunks, new.chunk_count
      using errcode = 'integrity_constraint_violation';
  end if;
  return null;
end $$;

-- ---------------------------------------------------------------------------------------------- row security

-- Forced row-level security with one policy for the roles that act for a tenant. The subselect is evaluated once a
-- statement; nullif, because a transaction-local setting reads as '' after its transaction, not as NULL.
create or replace function meridian.protect(relation regclass) returns void
language plpgsql set search_path = pg_catalog, meridian as $$
declare
  own_rows constant text := 'tenant_id = (select nullif(current_setting(''app.tenant'', true), ''''))';
begin
  if exists (select 1 from pg_class where oid = relation and not (relrowsecurity and relforcerowsecurity)) then
    execute format('alter table %s enable row level security, force row level security', relation);
  end if;
  if not exists (select 1 from pg_policy where polrelid = relation and polname = 'own_tenant') then
    execute format('create policy own_tenant on %s to meridian_app, meridian_ingest, meridian_owner '
                   'using (%s) with check (%s)', relation, own_rows, own_rows);
  end if;
end $$;

create or replace function meridian.let_evidence_read(relation regclass) returns void
language plpgsql set search_path = pg_catalog, meridian as $$
begin
  if not exists (select 1 from pg_policy where polrelid = relation and polname = 'evidence') then
    execute format('create policy evidence on %s for select to meridian_evidence using (true)', relation);
  end if;
end $$;

-- Partition names come from hashes: any tenant and epoch gives a valid name, the same every time.
create or replace function meridian.partition_name(tenant text, epoch text default null) returns text
language sql immutable set search_path = pg_catalog as $$
  select 'chunks_t' || left(encode(sha256(convert_to(tenant, 'UTF8')), 'hex'), 16)
         || coalesce('_e' || left(encode(sha256(convert_to(epoch, 'UTF8')), 'hex'), 16), '')
$$;

-- Makes the tenant's partition; returns its name. Built beside the table and then attached: ATTACH lets readers go on.
create or replace function meridian.ensure_tenant(tenant text) returns text
language plpgsql set search_path = pg_catalog, meridian, public as $$
declare
  partition constant text := meridian.partition_name(tenant);
begin
  if tenant !~ '^[a-z0-9]([-a-z0-9]*[a-z0-9])?$' or length(tenant) > 40 then
    raise exception 'not a tenant id: %', quote_literal(left(tenant, 60)) using errcode = 'invalid_parameter_value';
  end if;
  perform pg_advisory_xact_lock(hashtextextended('meridian.partitions', 0));
  if to_regclass(format('meridian.%I', partition)) is null then
    execute format('create table meridian.%I (like meridian.chunks including all) partition by list (epoch)', partition);
    perform meridian.protect(format('meridian.%I', partition)::regclass);
    execute format('alter table meridian.chunks attach partition meridian.%I for values in (%L)', partition, tenant);
  end if;
  return partition;
end $$;

-- Makes the partition of a tenant's epoch (and the tenant's, if need be); returns its name.
create or replace function meridian.ensure_epoch(tenant text, epoch text) returns text
language plpgsql set search_path = pg_catalog, meridian, public as $$
declare
  parent constant text := meridian.ensure_tenant(tenant);
  partition constant text := meridian.partition_name(tenant, epoch);
begin
  if epoch = '' then
    raise exception 'an epoch needs a name' using errcode = 'invalid_parameter_value';
  end if;
  if to_regclass(format('meridian.%I', partition)) is null then
    execute format('create table meridian.%I (like meridian.chunks including all)', partition);
    perform meridian.protect(format('meridian.%I', partition)::regclass);
    execute format('alter table meridian.%I attach partition meridian.%I for values in (%L)', parent, partition, epoch);
  end if;
  return partition;
end $$;

-- Removes a tenant's share of an epoch: texts, pointers, chunks, progress. Request records and audit stay.
create or replace function meridian.drop_epoch(tenant text, gone text) returns void
language plpgsql set search_path = pg_catalog, meridian, public as $$
begin
  perform pg_advisory_xact_lock(hashtextextended('meridian.partitions', 0));
  perform set_config('app.tenant', tenant, true);
  execute format('drop table if exists meridian.%I', meridian.partition_name(tenant, gone));
  delete from meridian.documents d where d.tenant_id = tenant and d.epoch = gone;
  delete from meridian.document_versions v where v.tenant_id = tenant and v.epoch = gone;
  delete from meridian.epoch_sources s where s.tenant_id = tenant and s.epoch = gone;
end $$;

do $$
declare
  name text;
begin
  foreach name in array array['epoch_sources', 'documents', 'document_versions', 'chunks', 'request_records',
                              'outcomes', 'tool_audit'] loop
    perform meridian.protect(format('meridian.%I', name)::regclass);
  end loop;
  foreach name in array array['epoch_sources', 'request_records', 'outcomes'] loop
    perform meridian.let_evidence_read(format('meridian.%I', name)::regclass);
  end loop;
  if not exists (select 1 from pg_trigger where tgname = 'refuse_older_version_1') then
    create trigger refuse_older_version_1 before update on meridian.documents
      for each row execute function meridian.refuse_older_version();
  end if;
  if not exists (select 1 from pg_trigger where tgname = 'complete_publication_1') then
    create trigger complete_publication_1 after insert or update on meridian.documents
      for each row execute function meridian.complete_publication();
  end if;
end $$;

-- ---------------------------------------------------------------------------------------------- rights

-- Row operations only, and only those that a role's code performs: row security covers neither TRUNCATE nor
-- REFERENCES. Partitions carry no grants: they are reached through their table alone.
revoke all on all tables in schema meridian from public, meridian_app, meridian_ingest, meridian_evidence;
revoke all on all functions in schema meridian from public, meridian_app, meridian_ingest, meridian_evidence;

grant select on meridian.documents, meridian.document_versions, meridian.chunks to meridian_app;
grant select (name, uid, state, embedding_model, dimension, normaliser, corpus_fingerprint) on meridian.epochs to meridian_app;
grant select, insert on meridian.request_records, meridian.tool_audit to meridian_app;
grant select, insert, update (success, signal, overturned_at) on meridian.outcomes to meridian_app;

grant select, insert, update, delete on meridian.documents, meridian.document_versions, meridian.chunks,
  meridian.epoch_sources, meridian.epoch_shards to meridian_ingest;
grant select, insert, update on meridian.epochs, meridian.evaluation_reports to meridian_ingest;

grant select on meridian.request_records, meridian.outcomes, meridian.evaluation_reports, meridian.epochs,
  meridian.epoch_shards, meridian.epoch_sources to meridian_evidence;

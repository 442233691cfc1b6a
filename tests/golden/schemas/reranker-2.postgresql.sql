CREATE TABLE public.agents (
    id bigint NOT NULL,
    task_id character varying NOT NULL COLLATE pg_catalog."C",
    model_id character varying NOT NULL COLLATE pg_catalog."C",
    description character varying DEFAULT ''::character varying NOT NULL COLLATE pg_catalog."C",
    registered_at_us bigint,
    stored bigint DEFAULT '0'::bigint NOT NULL,
    flagged bigint DEFAULT '0'::bigint NOT NULL,
    usefulness double precision DEFAULT '0'::double precision NOT NULL,
    day bigint DEFAULT '0'::bigint NOT NULL,
    today bigint DEFAULT '0'::bigint NOT NULL,
    last_feedback_at_us bigint,
    value double precision,
    run bigint DEFAULT '0'::bigint NOT NULL,
    judged_again double precision DEFAULT '0'::double precision NOT NULL,
    contradicted double precision DEFAULT '0'::double precision NOT NULL
);
CREATE SEQUENCE public.agents_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.agents_id_seq OWNED BY public.agents.id;
CREATE TABLE public.feedback (
    sequence bigint NOT NULL,
    agent_id bigint NOT NULL,
    id character varying NOT NULL COLLATE pg_catalog."C",
    digest bytea NOT NULL,
    query character varying NOT NULL COLLATE pg_catalog."C",
    query_key bigint NOT NULL,
    passage_id character varying NOT NULL COLLATE pg_catalog."C",
    judged bigint NOT NULL,
    usefulness double precision NOT NULL,
    model_version character varying NOT NULL COLLATE pg_catalog."C",
    collection character varying NOT NULL COLLATE pg_catalog."C",
    ranking character varying NOT NULL COLLATE pg_catalog."C",
    flag smallint NOT NULL,
    recorded_at_us bigint NOT NULL
);
CREATE SEQUENCE public.feedback_sequence_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.feedback_sequence_seq OWNED BY public.feedback.sequence;
CREATE TABLE public.leases (
    agent_id bigint NOT NULL,
    holder character varying NOT NULL COLLATE pg_catalog."C",
    until_us bigint NOT NULL
);
CREATE TABLE public.schema_version (
    version integer NOT NULL
);
CREATE SEQUENCE public.schema_version_version_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.schema_version_version_seq OWNED BY public.schema_version.version;
CREATE TABLE public.served (
    sequence bigint NOT NULL,
    key bytea NOT NULL,
    passages bytea NOT NULL,
    served_at_us bigint NOT NULL
);
CREATE SEQUENCE public.served_sequence_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.served_sequence_seq OWNED BY public.served.sequence;
CREATE TABLE public.trainings (
    agent_id bigint NOT NULL,
    state smallint NOT NULL,
    progress double precision NOT NULL,
    message character varying NOT NULL COLLATE pg_catalog."C",
    trained_upto bigint NOT NULL,
    candidate_version character varying NOT NULL COLLATE pg_catalog."C",
    updated_at_us bigint NOT NULL
);
ALTER TABLE ONLY public.agents ALTER COLUMN id SET DEFAULT nextval('public.agents_id_seq'::regclass);
ALTER TABLE ONLY public.feedback ALTER COLUMN sequence SET DEFAULT nextval('public.feedback_sequence_seq'::regclass);
ALTER TABLE ONLY public.schema_version ALTER COLUMN version SET DEFAULT nextval('public.schema_version_version_seq'::regclass);
ALTER TABLE ONLY public.served ALTER COLUMN sequence SET DEFAULT nextval('public.served_sequence_seq'::regclass);
INSERT INTO public.agents VALUES (2, 'qa', 'bob', '', NULL, 2, 0, 2, 19675, 2, 1700000500000000, 1, 2, 0, 0);
INSERT INTO public.agents VALUES (1, 'qa', 'ann', 'reads rivers', 1700000500000000, 2, 0, 0, 19675, 3, 1700000500000000, 0, 3, 0, 0);
INSERT INTO public.feedback VALUES (1, 1, 'f0', '\xeddefad48548e51d77da400150ba02ed', 'query 0', 1316330336714934239, 'p', 9181405002427590122, 0, '', 'demo', '["p", "r"]', 0, 1700000500000000);
INSERT INTO public.feedback VALUES (2, 2, 'f1', '\xbd070b789c1a13603ea0c8d3205465e9', 'query 1', -7853276304524534944, 'p', -5199589933190037355, 1, '', 'demo', '["p", "r"]', 0, 1700000500000000);
INSERT INTO public.feedback VALUES (3, 1, 'f2', '\x2a2f647b1563dc82d8770566a7439e19', 'query 2', 8098314142726749669, 'p', -8475443501348835068, 0, '', 'demo', '["p", "r"]', 0, 1700000500000000);
INSERT INTO public.feedback VALUES (4, 2, 'f3', '\x85953a3acefaf41ff6c028c8f5a9fdd0', 'query 3', 3330804340758393572, 'p', -6728897991974337848, 1, '', 'demo', '["p", "r"]', 0, 1700000500000000);
INSERT INTO public.leases VALUES (1, 'trainer', 1700000560000000);
INSERT INTO public.schema_version VALUES (1);
INSERT INTO public.served VALUES (1, '\x6b6579', '\x7061737361676573', 1700000500000000);
INSERT INTO public.trainings VALUES (0, 0, 0, '', 3, '', 1700000500000000);
INSERT INTO public.trainings VALUES (1, 0, 1, 'done', 4, '', 1700000500000000);
SELECT pg_catalog.setval('public.agents_id_seq', 2, true);
SELECT pg_catalog.setval('public.feedback_sequence_seq', 5, true);
SELECT pg_catalog.setval('public.schema_version_version_seq', 1, false);
SELECT pg_catalog.setval('public.served_sequence_seq', 1, true);
ALTER TABLE ONLY public.agents
    ADD CONSTRAINT agents_by_ids UNIQUE (task_id, model_id);
ALTER TABLE ONLY public.agents
    ADD CONSTRAINT agents_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.feedback
    ADD CONSTRAINT feedback_by_id UNIQUE (agent_id, id);
ALTER TABLE ONLY public.feedback
    ADD CONSTRAINT feedback_pkey PRIMARY KEY (sequence);
ALTER TABLE ONLY public.leases
    ADD CONSTRAINT leases_pkey PRIMARY KEY (agent_id);
ALTER TABLE ONLY public.schema_version
    ADD CONSTRAINT schema_version_pkey PRIMARY KEY (version);
ALTER TABLE ONLY public.served
    ADD CONSTRAINT served_pkey PRIMARY KEY (sequence);
ALTER TABLE ONLY public.trainings
    ADD CONSTRAINT trainings_pkey PRIMARY KEY (agent_id);
CREATE INDEX feedback_by_judged ON public.feedback USING btree (agent_id, judged);
CREATE INDEX feedback_of_agent ON public.feedback USING btree (agent_id, sequence);
CREATE INDEX served_by_key ON public.served USING btree (key, sequence);

CREATE TABLE public.observations (
    id character varying(128) NOT NULL,
    run_id character varying(128) NOT NULL,
    query_id character varying(128) NOT NULL,
    observed_at_us bigint NOT NULL,
    stored_at_us bigint NOT NULL,
    collection character varying NOT NULL,
    retriever character varying NOT NULL,
    reranker character varying NOT NULL,
    generator character varying NOT NULL,
    alpha double precision,
    num_rankings integer NOT NULL,
    num_unanswered integer NOT NULL,
    ee_d double precision,
    ee_d_norm double precision,
    ee_r double precision,
    ee_r_norm double precision,
    expected_utility double precision,
    payload bytea NOT NULL
);
CREATE TABLE public.run_degradations (
    run_id character varying(128) NOT NULL,
    stage character varying(32) NOT NULL,
    reason character varying(128) NOT NULL,
    count bigint NOT NULL
);
CREATE TABLE public.run_moments (
    run_id character varying(128) NOT NULL,
    quantity character varying(64) NOT NULL,
    count bigint NOT NULL,
    undefined bigint NOT NULL,
    mean double precision NOT NULL,
    m2 double precision NOT NULL
);
CREATE TABLE public.run_providers (
    run_id character varying(128) NOT NULL,
    provider character varying NOT NULL,
    exposure double precision NOT NULL,
    target double precision
);
CREATE TABLE public.runs (
    sequence bigint NOT NULL,
    run_id character varying(128) NOT NULL,
    num_observations bigint NOT NULL,
    num_rankings bigint NOT NULL,
    num_unanswered bigint NOT NULL,
    started_at_us bigint NOT NULL,
    updated_at_us bigint NOT NULL
);
CREATE SEQUENCE public.runs_sequence_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.runs_sequence_seq OWNED BY public.runs.sequence;
ALTER TABLE ONLY public.runs ALTER COLUMN sequence SET DEFAULT nextval('public.runs_sequence_seq'::regclass);
INSERT INTO public.observations VALUES ('o0', 'run', 'q0', 1700000000000000, 1795347997205817, 'demo', 'hybrid', 'none', 'pointer', 2, 2, 0, 1.5, 0.75, 1.25, 0.8333333333333334, 0, '\x0a026f30120372756e1a027130220c57686963682072697665723f2a060880e2cfaa06320464656d6f42066879627269644a046e6f6e655a07706f696e7465726900000000000000407a070a0161120250617a070a0162120250627a070a01631202506382010808021204000101028a010e0a0874686520456c6265120200019201100a016110011a09746865205268696e65');
INSERT INTO public.observations VALUES ('o1', 'run', 'q1', 1700000060000000, 1795347997220803, 'demo', 'hybrid', 'none', 'pointer', 2, 2, 0, 1.5, 0.75, 1.25, 0.8333333333333334, 1, '\x0a026f31120372756e1a027131220c57686963682072697665723f2a0608bce2cfaa06320464656d6f42066879627269644a046e6f6e655a07706f696e7465726900000000000000407a070a0161120250617a070a0162120250627a070a01631202506382010808021204000101028a010f0a09746865205268696e65120200019201100a016110011a09746865205268696e65');
INSERT INTO public.observations VALUES ('o2', 'run', 'q0', 1700000120000000, 1795347997225298, 'demo', 'hybrid', 'none', 'pointer', 2, 2, 0, 1.5, 0.75, 1.25, 0.8333333333333334, 1, '\x0a026f32120372756e1a027130220c57686963682072697665723f2a0608f8e2cfaa06320464656d6f42066879627269644a046e6f6e655a07706f696e7465726900000000000000407a070a0161120250617a070a0162120250627a070a01631202506382010808021204000101028a010f0a09746865205268696e65120200019201100a016110011a09746865205268696e65');
INSERT INTO public.run_moments VALUES ('run', 'ee_d', 3, 0, 1.5, 0);
INSERT INTO public.run_moments VALUES ('run', 'ee_d_norm', 3, 0, 0.75, 0);
INSERT INTO public.run_moments VALUES ('run', 'ee_r', 3, 0, 1.25, 0);
INSERT INTO public.run_moments VALUES ('run', 'ee_r_norm', 3, 0, 0.8333333333333334, 0);
INSERT INTO public.run_moments VALUES ('run', 'expected_utility', 3, 0, 0.6666666666666666, 0.6666666666666666);
INSERT INTO public.run_providers VALUES ('run', 'Pa', 1.5, 3);
INSERT INTO public.run_providers VALUES ('run', 'Pb', 3, 1.5);
INSERT INTO public.run_providers VALUES ('run', 'Pc', 1.5, 1.5);
INSERT INTO public.runs VALUES (1, 'run', 3, 6, 0, 1700000000000000, 1700000120000000);
SELECT pg_catalog.setval('public.runs_sequence_seq', 3, true);
ALTER TABLE ONLY public.observations
    ADD CONSTRAINT observations_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.run_degradations
    ADD CONSTRAINT run_degradations_pkey PRIMARY KEY (run_id, stage, reason);
ALTER TABLE ONLY public.run_moments
    ADD CONSTRAINT run_moments_pkey PRIMARY KEY (run_id, quantity);
ALTER TABLE ONLY public.run_providers
    ADD CONSTRAINT run_providers_pkey PRIMARY KEY (run_id, provider);
ALTER TABLE ONLY public.runs
    ADD CONSTRAINT runs_pkey PRIMARY KEY (sequence);
ALTER TABLE ONLY public.runs
    ADD CONSTRAINT runs_run_id_key UNIQUE (run_id);

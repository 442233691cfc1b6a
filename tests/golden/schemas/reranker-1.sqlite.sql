BEGIN TRANSACTION;
CREATE TABLE agents (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	task_id VARCHAR NOT NULL, 
	model_id VARCHAR NOT NULL, 
	description VARCHAR DEFAULT '' NOT NULL, 
	registered_at_us BIGINT, 
	stored BIGINT DEFAULT '0' NOT NULL, 
	flagged BIGINT DEFAULT '0' NOT NULL, 
	usefulness DOUBLE DEFAULT '0' NOT NULL, 
	day BIGINT DEFAULT '0' NOT NULL, 
	today BIGINT DEFAULT '0' NOT NULL, 
	last_feedback_at_us BIGINT, 
	value DOUBLE, 
	run BIGINT DEFAULT '0' NOT NULL, 
	judged_again DOUBLE DEFAULT '0' NOT NULL, 
	contradicted DOUBLE DEFAULT '0' NOT NULL, 
	CONSTRAINT agents_by_ids UNIQUE (task_id, model_id)
);
INSERT INTO "agents" VALUES(1,'qa','ann','reads rivers',1700000500000000,2,0,0.0,19675,3,1700000500000000,0.0,3,0.0,0.0);
INSERT INTO "agents" VALUES(2,'qa','bob','',NULL,2,0,2.0,19675,2,1700000500000000,1.0,2,0.0,0.0);
CREATE TABLE feedback (
	sequence INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	agent_id BIGINT NOT NULL, 
	id VARCHAR NOT NULL, 
	digest BLOB NOT NULL, 
	"query" VARCHAR NOT NULL, 
	query_key BIGINT NOT NULL, 
	passage_id VARCHAR NOT NULL, 
	judged BIGINT NOT NULL, 
	usefulness DOUBLE NOT NULL, 
	model_version VARCHAR NOT NULL, 
	collection VARCHAR NOT NULL, 
	ranking VARCHAR NOT NULL, 
	flag SMALLINT NOT NULL, 
	recorded_at_us BIGINT NOT NULL, 
	CONSTRAINT feedback_by_id UNIQUE (agent_id, id)
);
INSERT INTO "feedback" VALUES(1,1,'f0',X'EDDEFAD48548E51D77DA400150BA02ED','query 0',1316330336714934239,'p',9181405002427590122,0.0,'','demo','["p", "r"]',0,1700000500000000);
INSERT INTO "feedback" VALUES(2,2,'f1',X'BD070B789C1A13603EA0C8D3205465E9','query 1',-7853276304524534944,'p',-5199589933190037355,1.0,'','demo','["p", "r"]',0,1700000500000000);
INSERT INTO "feedback" VALUES(3,1,'f2',X'2A2F647B1563DC82D8770566A7439E19','query 2',8098314142726749669,'p',-8475443501348835068,0.0,'','demo','["p", "r"]',0,1700000500000000);
INSERT INTO "feedback" VALUES(4,2,'f3',X'85953A3ACEFAF41FF6C028C8F5A9FDD0','query 3',3330804340758393572,'p',-6728897991974337848,1.0,'','demo','["p", "r"]',0,1700000500000000);
CREATE TABLE schema_version (
	version INTEGER NOT NULL, 
	PRIMARY KEY (version)
);
INSERT INTO "schema_version" VALUES(1);
CREATE TABLE served (
	sequence INTEGER NOT NULL, 
	"key" BLOB NOT NULL, 
	passages BLOB NOT NULL, 
	served_at_us BIGINT NOT NULL, 
	PRIMARY KEY (sequence)
);
INSERT INTO "served" VALUES(1,X'6B6579',X'7061737361676573',1700000500000000);
CREATE TABLE trainings (
	agent_id BIGINT NOT NULL, 
	state SMALLINT NOT NULL, 
	progress DOUBLE NOT NULL, 
	message VARCHAR NOT NULL, 
	trained_upto BIGINT NOT NULL, 
	candidate_version VARCHAR NOT NULL, 
	updated_at_us BIGINT NOT NULL, 
	PRIMARY KEY (agent_id)
);
INSERT INTO "trainings" VALUES(0,0,0.0,'',3,'',1700000500000000);
INSERT INTO "trainings" VALUES(1,0,1.0,'done',4,'',1700000500000000);
CREATE INDEX feedback_of_agent ON feedback (agent_id, sequence);
CREATE INDEX feedback_by_judged ON feedback (agent_id, judged);
CREATE INDEX served_by_key ON served ("key", sequence);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('agents',2);
INSERT INTO "sqlite_sequence" VALUES('feedback',5);
COMMIT;
PRAGMA user_version=0;

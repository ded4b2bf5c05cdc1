BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('v3.2.0.a');
CREATE TABLE studies (
	study_id INTEGER NOT NULL, 
	study_name VARCHAR(512) NOT NULL, 
	PRIMARY KEY (study_id)
);
INSERT INTO "studies" VALUES(1,'s');
CREATE TABLE study_directions (
	study_direction_id INTEGER NOT NULL, 
	direction VARCHAR(8) NOT NULL, 
	study_id INTEGER NOT NULL, 
	objective INTEGER NOT NULL, 
	PRIMARY KEY (study_direction_id), 
	UNIQUE (study_id, objective), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
INSERT INTO "study_directions" VALUES(1,'MINIMIZE',1,0);
CREATE TABLE study_system_attributes (
	study_system_attribute_id INTEGER NOT NULL, 
	study_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (study_system_attribute_id), 
	UNIQUE (study_id, "key"), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
INSERT INTO "study_system_attributes" VALUES(1,1,'study:metric_names','["step seconds"]');
CREATE TABLE study_user_attributes (
	study_user_attribute_id INTEGER NOT NULL, 
	study_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (study_user_attribute_id), 
	UNIQUE (study_id, "key"), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
INSERT INTO "study_user_attributes" VALUES(1,1,'settings','{"schema_version": 1, "request": {"model": "gpt3-1.7b", "gpus": 8, "gpu": "a100-80gb", "software": "megatron-local", "seq_length": 1024, "global_batch_size": 8, "architecture": {"num_layers": 4}, "fix": ["recompute=none"], "max": ["pp=2"]}, "device": "cuda", "device_memory_bytes": null, "seed": 0, "steps": 5, "warmup_steps": 2, "objective": "step"}');
INSERT INTO "study_user_attributes" VALUES(2,1,'candidates','"d796e10b5986ffa7"');
CREATE TABLE trial_heartbeats (
	trial_heartbeat_id INTEGER NOT NULL, 
	trial_id INTEGER NOT NULL, 
	heartbeat DATETIME NOT NULL, 
	PRIMARY KEY (trial_heartbeat_id), 
	UNIQUE (trial_id), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
CREATE TABLE trial_intermediate_values (
	trial_intermediate_value_id INTEGER NOT NULL, 
	trial_id INTEGER NOT NULL, 
	step INTEGER NOT NULL, 
	intermediate_value FLOAT, 
	intermediate_value_type VARCHAR(7) NOT NULL, 
	PRIMARY KEY (trial_intermediate_value_id), 
	UNIQUE (trial_id, step), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
CREATE TABLE trial_params (
	param_id INTEGER NOT NULL, 
	trial_id INTEGER, 
	param_name VARCHAR(512), 
	param_value FLOAT, 
	distribution_json TEXT, 
	PRIMARY KEY (param_id), 
	UNIQUE (trial_id, param_name), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_params" VALUES(1,1,'tp',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 4, 8]}}');
INSERT INTO "trial_params" VALUES(2,1,'pp',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2]}}');
INSERT INTO "trial_params" VALUES(3,1,'vpp',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2]}}');
INSERT INTO "trial_params" VALUES(4,1,'dp',2.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 4, 8]}}');
INSERT INTO "trial_params" VALUES(5,1,'mbs',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 4, 8]}}');
INSERT INTO "trial_params" VALUES(6,1,'sp',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [0, 1]}}');
INSERT INTO "trial_params" VALUES(7,1,'recompute',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["none"]}}');
INSERT INTO "trial_params" VALUES(8,1,'first',2.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 3, "even"]}}');
INSERT INTO "trial_params" VALUES(9,1,'last',2.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 3, "even"]}}');
INSERT INTO "trial_params" VALUES(10,2,'tp',2.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 4, 8]}}');
INSERT INTO "trial_params" VALUES(11,2,'pp',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2]}}');
INSERT INTO "trial_params" VALUES(12,2,'vpp',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2]}}');
INSERT INTO "trial_params" VALUES(13,2,'dp',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 4, 8]}}');
INSERT INTO "trial_params" VALUES(14,2,'mbs',2.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 4, 8]}}');
INSERT INTO "trial_params" VALUES(15,2,'sp',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [0, 1]}}');
INSERT INTO "trial_params" VALUES(16,2,'recompute',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["none"]}}');
INSERT INTO "trial_params" VALUES(17,2,'first',2.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 3, "even"]}}');
INSERT INTO "trial_params" VALUES(18,2,'last',2.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 3, "even"]}}');
INSERT INTO "trial_params" VALUES(19,3,'tp',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 4, 8]}}');
INSERT INTO "trial_params" VALUES(20,3,'pp',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2]}}');
INSERT INTO "trial_params" VALUES(21,3,'vpp',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2]}}');
INSERT INTO "trial_params" VALUES(22,3,'dp',2.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 4, 8]}}');
INSERT INTO "trial_params" VALUES(23,3,'mbs',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 4, 8]}}');
INSERT INTO "trial_params" VALUES(24,3,'sp',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [0, 1]}}');
INSERT INTO "trial_params" VALUES(25,3,'recompute',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["none"]}}');
INSERT INTO "trial_params" VALUES(26,3,'first',2.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 3, "even"]}}');
INSERT INTO "trial_params" VALUES(27,3,'last',2.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 3, "even"]}}');
INSERT INTO "trial_params" VALUES(28,4,'tp',3.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 4, 8]}}');
INSERT INTO "trial_params" VALUES(29,4,'pp',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2]}}');
INSERT INTO "trial_params" VALUES(30,4,'vpp',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2]}}');
INSERT INTO "trial_params" VALUES(31,4,'dp',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 4, 8]}}');
INSERT INTO "trial_params" VALUES(32,4,'mbs',3.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 2, 4, 8]}}');
INSERT INTO "trial_params" VALUES(33,4,'sp',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [0, 1]}}');
INSERT INTO "trial_params" VALUES(34,4,'recompute',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["none"]}}');
INSERT INTO "trial_params" VALUES(35,4,'first',2.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 3, "even"]}}');
INSERT INTO "trial_params" VALUES(36,4,'last',2.0,'{"name": "CategoricalDistribution", "attributes": {"choices": [1, 3, "even"]}}');
CREATE TABLE trial_system_attributes (
	trial_system_attribute_id INTEGER NOT NULL, 
	trial_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (trial_system_attribute_id), 
	UNIQUE (trial_id, "key"), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
CREATE TABLE trial_user_attributes (
	trial_user_attribute_id INTEGER NOT NULL, 
	trial_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (trial_user_attribute_id), 
	UNIQUE (trial_id, "key"), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_user_attributes" VALUES(1,1,'repeat','0');
INSERT INTO "trial_user_attributes" VALUES(2,1,'plan','"tp=2,pp=1,dp=4,mbs=2,sp=0,recompute=none"');
INSERT INTO "trial_user_attributes" VALUES(3,1,'predicted_step_seconds','0.0305446922176084');
INSERT INTO "trial_user_attributes" VALUES(4,1,'owner','"vm:/tmp/rm/oldplace/work"');
INSERT INTO "trial_user_attributes" VALUES(5,1,'why','"best of all in 19% of what is possible; expected 0.03054 s, give or take 44%"');
INSERT INTO "trial_user_attributes" VALUES(6,1,'chance_to_win','0.1925');
INSERT INTO "trial_user_attributes" VALUES(7,1,'claimed','true');
INSERT INTO "trial_user_attributes" VALUES(8,1,'stage','"full"');
INSERT INTO "trial_user_attributes" VALUES(9,1,'job','"4a6fcdf28b327982"');
INSERT INTO "trial_user_attributes" VALUES(10,1,'outcome','"measured"');
INSERT INTO "trial_user_attributes" VALUES(11,1,'measured_step_seconds','0.02804002745576451');
INSERT INTO "trial_user_attributes" VALUES(12,1,'log_ratio','-0.08555788836164654');
INSERT INTO "trial_user_attributes" VALUES(13,1,'log_sd','0.01');
INSERT INTO "trial_user_attributes" VALUES(14,1,'step_seconds_samples','[0.02804002745576451, 0.02804002745576451, 0.02804002745576451]');
INSERT INTO "trial_user_attributes" VALUES(15,1,'step_seconds_spread','0.0');
INSERT INTO "trial_user_attributes" VALUES(16,1,'measured_peak_bytes','1048576');
INSERT INTO "trial_user_attributes" VALUES(17,1,'measured_peak_gib','0.0009765625');
INSERT INTO "trial_user_attributes" VALUES(18,2,'repeat','0');
INSERT INTO "trial_user_attributes" VALUES(19,2,'plan','"tp=4,pp=1,dp=2,mbs=4,sp=1,recompute=none"');
INSERT INTO "trial_user_attributes" VALUES(20,2,'predicted_step_seconds','0.030710508671237577');
INSERT INTO "trial_user_attributes" VALUES(21,2,'owner','"vm:/tmp/rm/oldplace/work"');
INSERT INTO "trial_user_attributes" VALUES(22,2,'why','"best of all in 17% of what is possible; expected 0.02841 s, give or take 18%"');
INSERT INTO "trial_user_attributes" VALUES(23,2,'chance_to_win','0.1655');
INSERT INTO "trial_user_attributes" VALUES(24,2,'claimed','true');
INSERT INTO "trial_user_attributes" VALUES(25,2,'stage','"full"');
INSERT INTO "trial_user_attributes" VALUES(26,2,'job','"e1b0a91396b6299f"');
INSERT INTO "trial_user_attributes" VALUES(27,2,'outcome','"out_of_memory"');
INSERT INTO "trial_user_attributes" VALUES(28,2,'message','"as told"');
INSERT INTO "trial_user_attributes" VALUES(29,3,'repeat','0');
INSERT INTO "trial_user_attributes" VALUES(30,3,'plan','"tp=2,pp=1,dp=4,mbs=2,sp=1,recompute=none"');
INSERT INTO "trial_user_attributes" VALUES(31,3,'predicted_step_seconds','0.03050636613382378');
INSERT INTO "trial_user_attributes" VALUES(32,3,'owner','"vm:/tmp/rm/oldplace/work"');
INSERT INTO "trial_user_attributes" VALUES(33,3,'why','"best of all in 20% of what is possible; expected 0.0282 s, give or take 15%"');
INSERT INTO "trial_user_attributes" VALUES(34,3,'chance_to_win','0.202');
INSERT INTO "trial_user_attributes" VALUES(35,3,'claimed','true');
INSERT INTO "trial_user_attributes" VALUES(36,3,'stage','"full"');
INSERT INTO "trial_user_attributes" VALUES(37,3,'job','"514e96ace6146962"');
INSERT INTO "trial_user_attributes" VALUES(38,3,'outcome','"measured"');
INSERT INTO "trial_user_attributes" VALUES(39,3,'measured_step_seconds','0.02690661493003257');
INSERT INTO "trial_user_attributes" VALUES(40,3,'log_ratio','-0.12556322297534586');
INSERT INTO "trial_user_attributes" VALUES(41,3,'log_sd','0.01');
INSERT INTO "trial_user_attributes" VALUES(42,3,'step_seconds_samples','[0.02690661493003257, 0.02690661493003257, 0.02690661493003257]');
INSERT INTO "trial_user_attributes" VALUES(43,3,'step_seconds_spread','0.0');
INSERT INTO "trial_user_attributes" VALUES(44,3,'measured_peak_bytes','1048576');
INSERT INTO "trial_user_attributes" VALUES(45,3,'measured_peak_gib','0.0009765625');
INSERT INTO "trial_user_attributes" VALUES(46,4,'repeat','0');
INSERT INTO "trial_user_attributes" VALUES(47,4,'plan','"tp=8,pp=1,dp=1,mbs=8,sp=1,recompute=none"');
INSERT INTO "trial_user_attributes" VALUES(48,4,'predicted_step_seconds','0.03343874478958921');
INSERT INTO "trial_user_attributes" VALUES(49,4,'owner','"vm:/tmp/rm/oldplace/work"');
INSERT INTO "trial_user_attributes" VALUES(50,4,'why','"best of all in 17% of what is possible; expected 0.02964 s, give or take 21%"');
INSERT INTO "trial_user_attributes" VALUES(51,4,'chance_to_win','0.1705');
INSERT INTO "trial_user_attributes" VALUES(52,4,'claimed','true');
INSERT INTO "trial_user_attributes" VALUES(53,4,'stage','"full"');
INSERT INTO "trial_user_attributes" VALUES(54,4,'job','"26051223ee51f913"');
INSERT INTO "trial_user_attributes" VALUES(55,4,'outcome','"measured"');
INSERT INTO "trial_user_attributes" VALUES(56,4,'measured_step_seconds','0.030215249791872813');
INSERT INTO "trial_user_attributes" VALUES(57,4,'log_ratio','-0.10136849438828877');
INSERT INTO "trial_user_attributes" VALUES(58,4,'log_sd','0.01');
INSERT INTO "trial_user_attributes" VALUES(59,4,'step_seconds_samples','[0.030215249791872813, 0.030215249791872813, 0.030215249791872813]');
INSERT INTO "trial_user_attributes" VALUES(60,4,'step_seconds_spread','0.0');
INSERT INTO "trial_user_attributes" VALUES(61,4,'measured_peak_bytes','1048576');
INSERT INTO "trial_user_attributes" VALUES(62,4,'measured_peak_gib','0.0009765625');
CREATE TABLE trial_values (
	trial_value_id INTEGER NOT NULL, 
	trial_id INTEGER NOT NULL, 
	objective INTEGER NOT NULL, 
	value FLOAT, 
	value_type VARCHAR(7) NOT NULL, 
	PRIMARY KEY (trial_value_id), 
	UNIQUE (trial_id, objective), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_values" VALUES(1,1,0,2.80400274557645115547e-02,'FINITE');
INSERT INTO "trial_values" VALUES(2,3,0,2.69066149300325706261e-02,'FINITE');
INSERT INTO "trial_values" VALUES(3,4,0,3.02152497918728134285e-02,'FINITE');
CREATE TABLE trials (
	trial_id INTEGER NOT NULL, 
	number INTEGER, 
	study_id INTEGER, 
	state VARCHAR(8) NOT NULL, 
	datetime_start DATETIME, 
	datetime_complete DATETIME, 
	PRIMARY KEY (trial_id), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
INSERT INTO "trials" VALUES(1,0,1,'COMPLETE','2026-11-28 02:38:24.449800','2026-11-28 02:38:26.200427');
INSERT INTO "trials" VALUES(2,1,1,'PRUNED','2026-11-28 02:38:26.262471','2026-11-28 02:38:27.447455');
INSERT INTO "trials" VALUES(3,2,1,'COMPLETE','2026-11-28 02:38:27.513583','2026-11-28 02:38:29.277200');
INSERT INTO "trials" VALUES(4,3,1,'COMPLETE','2026-11-28 02:38:29.558577','2026-11-28 02:38:30.990128');
CREATE TABLE version_info (
	version_info_id INTEGER NOT NULL, 
	schema_version INTEGER, 
	library_version VARCHAR(256), 
	PRIMARY KEY (version_info_id), 
	CHECK (version_info_id=1)
);
INSERT INTO "version_info" VALUES(1,12,'5.0.0');
CREATE UNIQUE INDEX ix_studies_study_name ON studies (study_name);
CREATE INDEX ix_trials_study_id ON trials (study_id);
COMMIT;

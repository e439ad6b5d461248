CREATE DATABASE s1
CREATE TABLE s1.t (id INT PRIMARY KEY, e ENUM('a', 'é') CHARACTER SET ascii COLLATE ascii_bin, s SET('b', '中') CHARACTER SET ascii COLLATE ascii_bin)
INSERT INTO s1.t VALUES (1, 'é', '中,b'), (2, 'a', 'b'), (3, NULL, '')
-- moment
ALTER TABLE s1.t MODIFY e ENUM('a', 'é', 'ü') CHARACTER SET ascii COLLATE ascii_bin
UPDATE s1.t SET e = 'ü' WHERE id = 2
-- moment

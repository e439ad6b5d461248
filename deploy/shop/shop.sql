CREATE DATABASE IF NOT EXISTS shop CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
CREATE TABLE IF NOT EXISTS shop.customers (
  id BIGINT PRIMARY KEY, email VARCHAR(80) NOT NULL, name VARCHAR(60) NOT NULL, born DATE, credit DECIMAL(14,2) NOT NULL,
  address JSON, seen TIMESTAMP(6) NULL, old_code VARCHAR(20), UNIQUE KEY email (email), KEY by_name (name));
CREATE TABLE IF NOT EXISTS shop.stock (
  sku VARCHAR(40) PRIMARY KEY, shelf INT NOT NULL, price DECIMAL(10,2) NOT NULL, pieces INT UNSIGNED NOT NULL, weight DOUBLE,
  hazards SET('glass', 'hot', 'cold'), UNIQUE KEY shelf (shelf));
CREATE TABLE IF NOT EXISTS shop.orders (
  id BIGINT PRIMARY KEY, customer BIGINT NOT NULL, state ENUM('new', 'paid', 'sent') NOT NULL, placed DATETIME(3) NOT NULL,
  total DECIMAL(12,2) NOT NULL, note VARCHAR(80), KEY by_customer (customer, placed));
CREATE TABLE IF NOT EXISTS shop.order_lines (
  order_id BIGINT, sku VARCHAR(40), pieces SMALLINT UNSIGNED NOT NULL, price DECIMAL(10,2) NOT NULL, PRIMARY KEY (order_id, sku));
CREATE TABLE IF NOT EXISTS shop.photos (sku VARCHAR(40) PRIMARY KEY, picture MEDIUMBLOB);
CREATE TABLE IF NOT EXISTS shop.visits (customer BIGINT NOT NULL, at DATETIME(3) NOT NULL, page VARCHAR(60))

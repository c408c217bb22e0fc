/* Data sets: class folders, odd entries, limits (users_expect.md 5). */
#include "data_folder.h"

/* ---- class folders ---- */

static void class_folders(void **state) {
    (void)state;
    put_image(root, "train/dog/b.JPEG", "grey.jpg");
    put_image(root, "train/dog/sub/a.png", "rgb.png");
    put_image(root, "train/cat/1 with space.jpg", "grey.jpg");
    put_image(root, "train/Zebra/\xff\xfe\n.jpeg", "grey.jpg");
    put_text(root, "train/dog/readme.txt", "x");
    put_image(root, "train/dog/._b.jpg", "grey.jpg");
    put_image(root, "train/.ipynb_checkpoints/c.jpg", "grey.jpg");
    put_image(root, "train/beside.jpg", "grey.jpg");
    put_image(root, "val/dog/v.jpg", "grey.jpg");
    DataConfig c = config_of(root);
    ClassList classes = {0};
    Dataset *train, *val;
    assert_ok(dataset_open(&c, "train", &classes, &train));
    expect_classes(&classes, "Zebra cat dog"); /* byte order */
    assert_int_equal(dataset_count(train), 4);
    assert_int_equal(dataset_label(train, 0), 0);
    assert_int_equal(label_of(train, "with space"), 1);
    assert_int_equal(label_of(train, "sub/a.png"), 2);
    assert_int_equal(read_all(train), 4);
    DatasetReport r = dataset_report(train);
    assert_int_equal(r.images, 4);
    assert_int_equal(r.classes, 3);
    assert_int_equal(r.hidden_skipped, 2);
    assert_int_equal(r.other_files, 2);
    expect_log("beside the class folders");
    assert_ok(dataset_open(&c, "val", &classes, &val));
    assert_int_equal(dataset_label(val, 0), 2);
    expect_log("2 of 3 classes have no folder: 'Zebra', 'cat'");
    dataset_close(train);
    dataset_close(val);
    class_list_free(&classes);
}

static void empty_class_keeps_its_index(void **state) {
    (void)state;
    char path[300];
    put_image(root, "a/1.jpg", "grey.jpg");
    put_image(root, "c/1.jpg", "grey.jpg");
    snprintf(path, sizeof path, "%s/b", root);
    assert_ok(file_make_folder(path));
    DataConfig c = config_of(root);
    ClassList classes = {0};
    Dataset *d;
    assert_ok(dataset_open(&c, "", &classes, &d));
    expect_classes(&classes, "a b c");
    assert_int_equal(label_of(d, "c/1.jpg"), 2);
    assert_int_equal(dataset_report(d).empty_classes, 1);
    expect_log("1 of 3 classes have no image");
    dataset_close(d);
    class_list_free(&classes);
}

static void class_sets_must_agree(void **state) {
    (void)state;
    put_image(root, "train/n01/1.jpg", "grey.jpg");
    put_image(root, "train/n02/1.jpg", "grey.jpg");
    put_image(root, "val/n02/1.jpg", "grey.jpg");
    put_image(root, "val/n03/1.jpg", "grey.jpg");
    put_image(root, "devkit/1/1.jpg", "grey.jpg");
    put_image(root, "devkit/2/1.jpg", "grey.jpg");
    DataConfig c = config_of(root);
    ClassList classes = {0};
    Dataset *d;
    assert_ok(dataset_open(&c, "train", &classes, &d));
    dataset_close(d);
    expect_error(&c, "val", &classes, STATUS_DATA, "1 of 2 class folders are not among");
    assert_message("'n03'");
    expect_error(&c, "devkit", &classes, STATUS_DATA, "devkit ids");
    expect_classes(&classes, "n01 n02"); /* a given list stays */
    class_list_free(&classes);
}

static void class_orders(void **state) {
    (void)state;
    for (int i = 0; i < 12; i++) {
        char name[32];
        snprintf(name, sizeof name, "%d/x.jpg", i);
        put_image(root, name, "grey.jpg");
    }
    DataConfig c = config_of(root);
    ClassList classes = {0};
    Dataset *d;
    assert_ok(dataset_open(&c, "", &classes, &d));
    expect_classes(&classes, "0 1 10 11 2 3 4 5 6 7 8 9");
    expect_log("--class-order natural");
    dataset_close(d);
    class_list_free(&classes);
    c.class_order = CLASS_ORDER_NATURAL;
    assert_ok(dataset_open(&c, "", &classes, &d));
    expect_classes(&classes, "0 1 2 3 4 5 6 7 8 9 10 11");
    assert_int_equal(label_of(d, "/10/x.jpg"), 10);
    assert_true(strstr(dataset_name(d, 10), "/10/") != NULL); /* samples come in label order */
    dataset_close(d);
    class_list_free(&classes);
    c.class_order = CLASS_ORDER_FILE;
    expect_error(&c, "", &classes, STATUS_USAGE, "needs data.class_map");
    in_root(c.class_map, "map.txt");
    put_text(root, "map.txt",
             "\xEF\xBB\xBF"
             "11\r\n10\r\n\r\n9\n8\n7\n6\n5\n4\n3\n2\n1\n0\nextra");
    assert_ok(dataset_open(&c, "", &classes, &d));
    expect_classes(&classes, "11 10 9 8 7 6 5 4 3 2 1 0 extra");
    expect_log("1 of 13 classes have no folder: 'extra'");
    dataset_close(d);
    class_list_free(&classes);
    put_text(root, "map.txt", "1\n2\n");
    expect_error(&c, "", &classes, STATUS_DATA, "10 of 12 class folders are not among the 2");
    put_text(root, "map.txt", "1\n2\n1\n");
    expect_error(&c, "", &classes, STATUS_DATA, "'1' is listed twice");
    put_text(root, "map.txt", "\n");
    expect_error(&c, "", &classes, STATUS_DATA, "no class names");
}

static void readable_names(void **state) {
    (void)state;
    put_image(root, "n1/x.jpg", "grey.jpg");
    put_image(root, "n2/x.jpg", "grey.jpg");
    put_text(root, "names.txt", "n2\tgreat white shark\nn9\tother\nn1 tench, Tinca tinca\n");
    DataConfig c = config_of(root);
    in_root(c.class_names, "names.txt");
    ClassList classes = {0}, copy;
    Dataset *d;
    assert_ok(dataset_open(&c, "", &classes, &d));
    assert_string_equal(classes.readable[0], "tench, Tinca tinca");
    assert_string_equal(classes.readable[1], "great white shark");
    assert_ok(class_list_copy(&copy, &classes));
    assert_string_equal(copy.readable[1], "great white shark");
    class_list_free(&copy);
    dataset_close(d);
    class_list_free(&classes);
    put_text(root, "names.txt", "x\ty\n");
    expect_error(&c, "", &classes, STATUS_DATA, "names none of the 2 classes");
}

/* ---- the file system's traps ---- */

static void odd_entries(void **state) {
    (void)state;
    char path[400], target[400];
    put_image(root, "train/a/real.jpg", "grey.jpg");
    put_image(root, "elsewhere/b/other.jpg", "rgb_420.jpg");
    put_image(root, "train/a/folder.jpg/inner.jpg", "grey.jpg");
    snprintf(path, sizeof path, "%s/train/a/fifo.jpg", root);
    assert_int_equal(mkfifo(path, 0600), 0);
    snprintf(path, sizeof path, "%s/train/a/dangling.jpg", root);
    assert_int_equal(symlink("nowhere", path), 0);
    snprintf(path, sizeof path, "%s/train/a/self.jpg", root);
    assert_int_equal(symlink("self.jpg", path), 0);
    snprintf(path, sizeof path, "%s/train/a/loop", root);
    assert_int_equal(symlink("..", path), 0);
    snprintf(path, sizeof path, "%s/train/linked", root);
    snprintf(target, sizeof target, "%s/elsewhere/b", root);
    assert_int_equal(symlink(target, path), 0);
    snprintf(path, sizeof path, "%s/train/a/to_b.jpg", root);
    snprintf(target, sizeof target, "%s/elsewhere/b/other.jpg", root);
    assert_int_equal(symlink(target, path), 0);
    DataConfig c = config_of(root);
    ClassList classes = {0};
    Dataset *d;
    assert_ok(dataset_open(&c, "train", &classes, &d));
    expect_classes(&classes, "a linked"); /* the link's name, not the target's */
    assert_int_equal(dataset_count(d), 4);
    assert_int_equal(label_of(d, "to_b.jpg"), 0);
    assert_int_equal(label_of(d, "linked/other.jpg"), 1);
    DatasetReport r = dataset_report(d);
    assert_int_equal(r.dangling_links, 2);
    assert_int_equal(r.other_files, 2); /* the FIFO and the loop */
    expect_log("leads back to a folder above it");
    expect_log("symbolic link to nothing");
    assert_int_equal(read_all(d), 4);
    dataset_close(d);
    class_list_free(&classes);
    c.follow_symlinks = false;
    assert_ok(dataset_open(&c, "train", &classes, &d));
    expect_classes(&classes, "a");
    assert_int_equal(dataset_count(d), 2);
    dataset_close(d);
    class_list_free(&classes);
}

static void long_paths(void **state) {
    (void)state;
    char name[300], deep[2000] = "train/a";
    memset(name, 'n', 251);
    strcpy(name + 251, ".jpg");
    strcat(strcat(deep, "/"), name);
    put_image(root, deep, "grey.jpg");
    strcpy(deep, "train/b");
    for (int i = 0; i < 40; i++) strcat(deep, "/deeper");
    strcat(deep, "/x.jpg");
    DataConfig c = config_of(root);
    ClassList classes = {0};
    Dataset *d;
    assert_ok(dataset_open(&c, "train", &classes, &d));
    assert_int_equal(read_all(d), 1);
    dataset_close(d);
    class_list_free(&classes);
    put_image(root, deep, "grey.jpg");
    expect_error(&c, "train", &classes, STATUS_DATA, "nested deeper");
}

static void missing_things(void **state) {
    (void)state;
    ClassList classes = {0};
    DataConfig c = config_of("");
    expect_error(&c, "train", &classes, STATUS_USAGE, "--data-dir");
    c = config_of("/nonexistent/place");
    expect_error(&c, "train", &classes, STATUS_IO, "/nonexistent/place");
    put_image(root, "training/a/1.jpg", "grey.jpg");
    put_image(root, "zeta/a/1.jpg", "grey.jpg");
    c = config_of(root);
    expect_error(&c, "train", &classes, STATUS_DATA, "it holds: training, zeta");
    expect_error(&c, "../x", &classes, STATUS_USAGE, "no plain folder name");
    put_text(root, "train/a/readme.txt", "x");
    put_text(root, "train/a/photo.webp", "x");
    expect_error(&c, "train", &classes, STATUS_DATA,
                 "no images for split 'train' (1 class folders, 2 other");
    char val[300];
    snprintf(val, sizeof val, "%s/two", root);
    put_image(root, "two/train/a/1.jpg", "grey.jpg");
    put_image(root, "two/val/a/1.jpg", "grey.jpg");
    c = config_of(val);
    expect_error(&c, "", &classes, STATUS_DATA, "splits (train, val, ...), not classes");
    put_image(root, "val2/validation/a/1.jpg", "grey.jpg");
    snprintf(val, sizeof val, "%s/val2", root);
    c = config_of(val);
    Dataset *d;
    assert_ok(dataset_open(&c, "val", &classes, &d)); /* the other common name */
    dataset_close(d);
    class_list_free(&classes);
}

static void unreadable_folder(void **state) {
    (void)state;
    char path[300];
    if (geteuid() == 0) skip(); /* root reads everything */
    put_image(root, "train/a/1.jpg", "grey.jpg");
    snprintf(path, sizeof path, "%s/train/a", root);
    chmod(path, 0);
    DataConfig c = config_of(root);
    ClassList classes = {0};
    expect_error(&c, "train", &classes, STATUS_IO, "cannot open folder");
}

/* ---- limits, failures, real data ---- */

static void limits_choose_a_fixed_subset(void **state) {
    (void)state;
    for (int i = 0; i < 30; i++) {
        char name[64];
        snprintf(name, sizeof name, "train/%c/%02d.jpg", 'a' + i % 3, i);
        put_image(root, name, "grey.jpg");
    }
    DataConfig c = config_of(root);
    ClassList classes = {0};
    Dataset *d, *again;
    c.train_limit = 10;
    assert_ok(dataset_open(&c, "train", &classes, &d));
    assert_ok(dataset_open(&c, "train", &classes, &again));
    assert_int_equal(dataset_count(d), 10);
    int64_t seen[3] = {0};
    for (int64_t i = 0; i < 10; i++) {
        assert_string_equal(dataset_name(d, i), dataset_name(again, i));
        seen[dataset_label(d, i)]++;
    }
    assert_true(seen[0] > 0 && seen[1] > 0 && seen[2] > 0); /* not the first ones */
    dataset_close(d);
    dataset_close(again);
    class_list_free(&classes);
}

static void real_archives(void **state) {
    (void)state;
    const char *path = shared_file("data/cifar10/cifar10-mini.tar");
    if (path == NULL) skip();
    DataConfig c = config_of(path);
    ClassList classes = {0};
    Dataset *d;
    assert_ok(dataset_open(&c, "train", &classes, &d));
    expect_classes(&classes, "airplane automobile bird cat deer dog frog horse ship truck");
    assert_int_equal(dataset_count(d), 1000);
    dataset_close(d);
    snprintf(c.val_split, sizeof c.val_split, "test");
    assert_ok(dataset_open(&c, c.val_split, &classes, &d));
    assert_int_equal(dataset_count(d), 200);
    assert_int_equal(dataset_label(d, 199), 9);
    dataset_close(d);
    class_list_free(&classes);
    c = config_of(shared_file("data/tiny-imagenet-100/tiny100-val.tar.gz"));
    expect_error(&c, "val", &classes, STATUS_DATA, "gunzip it first");
}

static void options_reach_the_decoder(void **state) {
    (void)state;
    DataConfig c = config_of("x");
    ImageOptions o = data_image_options(&c);
    assert_true(o.strict && !o.apply_orientation && o.check_plausible && o.max_pixels == 178956970);
    c.max_pixels = 5;
    c.exif_orientation = true;
    c.strict_decode = false;
    o = data_image_options(&c);
    assert_true(!o.strict && o.apply_orientation && o.max_pixels == 5);
}

/* ---- a share of the training images as validation split ---- */

static int64_t count_of(const DataConfig *c, const char *split, char *names, size_t size) {
    ClassList classes = {0};
    Dataset *d;
    assert_ok(dataset_open(c, split, &classes, &d));
    const int64_t count = dataset_count(d);
    names[0] = '\0';
    for (int64_t i = 0; i < count; i++) {
        const char *name = dataset_name(d, i);
        assert_true(strlen(names) + strlen(name) + 2 < size);
        strcat(names, "|");
        strcat(names, name);
    }
    dataset_close(d);
    class_list_free(&classes);
    return count;
}

static void part_of_the_training_images(void **state) {
    (void)state;
    char name[64], train[40000], val[20000], before[20000];
    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "%s/%03d.jpg", i % 2 ? "cat" : "dog", i);
        put_image(root, name, "grey.jpg");
    }
    put_image(root, "pair/1.jpg", "grey.jpg");
    put_image(root, "pair/2.jpg", "grey.jpg");
    put_image(root, "single/1.jpg", "grey.jpg");
    DataConfig c = config_of(root);
    c.train_split[0] = '\0';
    snprintf(c.val_split, sizeof c.val_split, "20%%");
    const int64_t held = count_of(&c, c.val_split, val, sizeof val);
    const int64_t rest = count_of(&c, c.train_split, train, sizeof train);
    assert_int_equal(held + rest, 103);
    assert_in_range(held, 12, 32);
    /* No image is on both sides; a class of two has one on each, a class of one trains. */
    for (char *at = strtok(val, "|"); at != NULL; at = strtok(NULL, "|"))
        assert_null(strstr(train, at));
    count_of(&c, c.val_split, val, sizeof val);
    assert_non_null(strstr(train, "/pair/"));
    assert_non_null(strstr(val, "/pair/"));
    assert_non_null(strstr(train, "/single/"));
    /* Images that come later move no others. */
    strcpy(before, val);
    for (int i = 100; i < 120; i++) {
        snprintf(name, sizeof name, "cat/%03d.jpg", i);
        put_image(root, name, "grey.jpg");
    }
    count_of(&c, c.val_split, val, sizeof val);
    for (char *at = strtok(before, "|"); at != NULL; at = strtok(NULL, "|"))
        assert_non_null(strstr(val, at));
    static const char *const no_shares[] = {"val", "",    "0%", "100%",  "-5%",
                                            "5",   "5%%", "%",  "1e400%"};
    for (size_t i = 0; i < sizeof no_shares / sizeof *no_shares; i++)
        assert_true(data_holdout(no_shares[i]) == 0);
    assert_true(data_holdout("12.5%") == 0.125);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(class_folders),
        TEST(part_of_the_training_images),
        TEST(empty_class_keeps_its_index),
        TEST(class_sets_must_agree),
        TEST(class_orders),
        TEST(readable_names),
        TEST(odd_entries),
        TEST(long_paths),
        TEST(missing_things),
        TEST(unreadable_folder),
        TEST(limits_choose_a_fixed_subset),
        TEST(real_archives),
        TEST(options_reach_the_decoder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Data sets: class folders, tars, flat splits, and the traps that give wrong labels
 * (users_expect.md 5). */
#include "data_tar.h"

#include "core/log.h"
#include "datasets/folder.h"

static char root[256];
static char logged[8192];

static void keep_log(void *user, LogLevel level, const char *message) {
    (void)user;
    (void)level;
    size_t used = strlen(logged);
    snprintf(logged + used, sizeof logged - used, "%s\n", message);
}

static int set_up(void **state) {
    (void)state;
    make_temp(root);
    logged[0] = '\0';
    log_set_sink(keep_log, NULL);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    log_set_sink(NULL, NULL);
    remove_tree(root);
    return 0;
}

static void expect_log(const char *part) {
    if (strstr(logged, part) == NULL) fail_msg("log '%s' lacks '%s'", logged, part);
}

/* Defaults of the option table. */
static DataConfig config_of(const char *where) {
    DataConfig c = {0};
    Section section = {"data", data_options, &c};
    Config *config;
    assert_ok(config_new(&section, 1, &config));
    config_free(config);
    snprintf(c.root, sizeof c.root, "%s", where);
    return c;
}

static void in_root(char out[CONFIG_TEXT], const char *name) {
    snprintf(out, CONFIG_TEXT, "%s/%s", root, name);
}

static void expect_error(const DataConfig *c, const char *split, ClassList *classes, Status code,
                         const char *message) {
    Dataset *d;
    int64_t live = mem_live();
    Status s = dataset_open(c, split, classes, &d);
    if (s == STATUS_OK) fail_msg("opened; expected '%s'", message);
    assert_null(d);
    assert_message(message);
    if (code != s) fail_msg("status %s: %s", status_name(s), status_message());
    assert_int_equal(mem_live(), live);
}

static void expect_classes(const ClassList *c, const char *names) {
    char text[1024] = "";
    for (int64_t i = 0; i < c->count; i++) {
        strcat(text, i > 0 ? " " : "");
        strcat(text, c->names[i]);
    }
    assert_string_equal(text, names);
}

static int64_t label_of(const Dataset *d, const char *part) {
    for (int64_t i = 0; i < dataset_count(d); i++) {
        if (strstr(dataset_name(d, i), part) != NULL) return dataset_label(d, i);
    }
    fail_msg("no sample %s", part);
    return -1;
}

/* Reads every sample; the number that could be read. */
static int64_t read_all(const Dataset *d) {
    int64_t ok = 0;
    for (int64_t i = 0; i < dataset_count(d); i++) {
        const void *bytes;
        size_t size;
        bool owned;
        if (dataset_bytes(d, i, &bytes, &size, &owned) != STATUS_OK) continue;
        ok += size > 0;
        if (owned) mem_free((void *)(uintptr_t)bytes);
    }
    return ok;
}

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

/* ---- flat splits ---- */

static void make_flat(void) {
    put_image(root, "train/n01/1.jpg", "grey.jpg");
    put_image(root, "train/n02/1.jpg", "grey.jpg");
    put_image(root, "train/n03/1.jpg", "grey.jpg");
    put_image(root, "val/v1.JPEG", "grey.jpg");
    put_image(root, "val/v2.JPEG", "grey.jpg");
    put_image(root, "val/v3.JPEG", "grey.jpg");
}

static void expect_flat(const char *labels, int64_t a, int64_t b, int64_t e) {
    DataConfig c = config_of(root);
    ClassList classes = {0};
    Dataset *d;
    assert_ok(dataset_open(&c, "train", &classes, &d));
    dataset_close(d);
    in_root(c.val_labels, "labels.txt");
    put_text(root, "labels.txt", labels);
    assert_ok(dataset_open(&c, "val", &classes, &d));
    assert_int_equal(dataset_count(d), 3);
    assert_int_equal(label_of(d, "v1"), a);
    assert_int_equal(label_of(d, "v2"), b);
    assert_int_equal(label_of(d, "v3"), e);
    dataset_close(d);
    class_list_free(&classes);
}

static void labels_files(void **state) {
    (void)state;
    make_flat();
    expect_flat("v1.JPEG 2\nv2.JPEG 0\nv3.JPEG 1\n", 2, 0, 1);
    expect_flat("val/v3.JPEG\tn01\r\nval/v2.JPEG\tn03\r\n\r\nval/v1.JPEG\tn02", 1, 2, 0);
    expect_flat("ImageId,PredictionString\nv1,n03 85 1 499 272 \nv2,n01 0 0 1 1 n01 2 2 3 "
                "3\nv3,n02 1 1 2 2\n",
                2, 0, 1);
    expect_flat("n02\nn02\nn01\n", 1, 1, 0); /* one name a line, in the order of file names */
}

static void labels_file_traps(void **state) {
    (void)state;
    static const struct {
        const char *labels, *message;
    } traps[] = {
        {"v1 0\nv2 1\n", "2 labels for 3 images; none for 'v3.JPEG'"},
        {"v1 0\nv2 1\nv3 2\nv4 0\n", "4 labels for 3 images; no image for 'v4'"},
        {"v1 0\nv2 1\nv2 2\n", "label the same image"},
        {"v1 0\nv2 1\nv3 3\n", "class index 3, but the 3 classes are 0 to 2"},
        {"v1 1\nv2 2\nv3 3\n", "count from 1"},
        {"1\n2\n3\n", "devkit"},
        {"490\n361\n171\n", "meta.mat"},
        {"0\n2\n1\n", "bare list of numbers"},
        {"n01\nn02\n", "2 labels for 3 images; none for"},
        {"n01\nn02\nn03\nn01\n", "4 labels for 3 images"},
        {"v1 n01\nv2 n02\nv3 n09\n", ":3: 'n09' is none of the 3 classes"},
        {"v1 n01\nn02\nv3 n03\n", ":2: expected 'name label'"},
        {"", "no labels"},
    };
    make_flat();
    DataConfig c = config_of(root);
    ClassList classes = {0};
    Dataset *d;
    assert_ok(dataset_open(&c, "train", &classes, &d));
    dataset_close(d);
    expect_error(&c, "val", &classes, STATUS_DATA, "lie flat, without class folders");
    assert_message("--val-labels");
    in_root(c.val_labels, "labels.txt");
    expect_error(&c, "val", &classes, STATUS_IO, "labels.txt");
    for (size_t i = 0; i < sizeof traps / sizeof traps[0]; i++) {
        put_text(root, "labels.txt", traps[i].labels);
        expect_error(&c, "val", &classes, STATUS_DATA, traps[i].message);
    }
    put_file(root, "labels.txt", "v1\0 0\n", 7);
    expect_error(&c, "val", &classes, STATUS_DATA, "not a text file");
    class_list_free(&classes);
    /* The labels file alone: names give the classes, numbers do when they start at 0. */
    put_text(root, "labels.txt", "v1 b\nv2 a\nv3 b\n");
    assert_ok(dataset_open(&c, "val", &classes, &d));
    expect_classes(&classes, "a b");
    dataset_close(d);
    class_list_free(&classes);
    put_text(root, "labels.txt", "v1 2\nv2 0\nv3 0\n");
    assert_ok(dataset_open(&c, "val", &classes, &d));
    expect_classes(&classes, "0 1 2");
    dataset_close(d);
    class_list_free(&classes);
    put_text(root, "labels.txt", "v1 2\nv2 1\nv3 1\n");
    expect_error(&c, "val", &classes, STATUS_DATA, "indices from 0 are expected");
}

static void kaggle_tree(void **state) {
    (void)state;
    put_image(root, "ILSVRC/Data/CLS-LOC/train/n01/1.JPEG", "grey.jpg");
    put_image(root, "ILSVRC/Data/CLS-LOC/train/n02/1.JPEG", "grey.jpg");
    put_image(root, "ILSVRC/Data/CLS-LOC/val/ILSVRC2012_val_00000001.JPEG", "grey.jpg");
    put_text(root, "LOC_val_solution.csv",
             "ImageId,PredictionString\nILSVRC2012_val_00000001,n02 1 2 3 4 \n");
    DataConfig c = config_of(root);
    ClassList classes = {0};
    Dataset *d;
    assert_ok(dataset_open(&c, "train", &classes, &d));
    dataset_close(d);
    assert_ok(dataset_open(&c, "val", &classes, &d));
    assert_int_equal(dataset_label(d, 0), 1);
    dataset_close(d);
    class_list_free(&classes);
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

/* ---- tars ---- */

static void make_tars(void) {
    TarBytes one = {0}, two = {0};
    tar_image(&one, "train/dog/2.jpg", "grey.jpg");
    tar_image(&one, "train/cat/train/1.jpg",
              "rgb_420.jpg"); /* a folder that only looks like a split */
    tar_image(&one, "val/dog/1.jpg", "grey.jpg");
    tar_file(&one, "train/dog/notes.txt", "x");
    tar_file(&one, "train/.hidden/3.jpg", "x");
    tar_finish(&one);
    tar_image(&two, "train/dog/1.jpg", "grey.jpg");
    tar_image(&two, "train/ant/1.jpg", "grey.jpg");
    tar_finish(&two);
    put_file(root, "one.tar", one.data, one.size);
    put_file(root, "two.tar", two.data, two.size);
    put_file(root, "set/train-1.tar", one.data, one.size);
    put_file(root, "set/train-2.tar", two.data, two.size);
    tar_drop(&one);
    tar_drop(&two);
}

static void tar_roots(void **state) {
    (void)state;
    char list[CONFIG_TEXT];
    make_tars();
    snprintf(list, sizeof list, "%s/one.tar", root);
    DataConfig c = config_of(list);
    ClassList classes = {0};
    Dataset *d;
    assert_ok(dataset_open(&c, "train", &classes, &d));
    expect_classes(&classes, "cat dog");
    assert_int_equal(dataset_count(d), 2);
    assert_int_equal(dataset_report(d).hidden_skipped, 1);
    assert_int_equal(dataset_report(d).other_files, 1);
    assert_true(strstr(dataset_name(d, 0), "one.tar:train/cat/train/1.jpg") != NULL);
    assert_int_equal(read_all(d), 2);
    dataset_close(d);
    class_list_free(&classes);
    expect_error(&c, "test", &classes, STATUS_DATA,
                 "no folder 'test' inside; it holds: train, val");

    snprintf(list, sizeof list, "%s/one.tar,%s/two.tar", root, root);
    c = config_of(list);
    assert_ok(dataset_open(&c, "train", &classes, &d));
    expect_classes(&classes, "ant cat dog");
    assert_int_equal(dataset_count(d), 4);
    assert_int_equal(label_of(d, "one.tar:train/dog/2.jpg"), 2);
    assert_int_equal(label_of(d, "two.tar:train/dog/1.jpg"), 2);
    dataset_close(d);
    assert_ok(dataset_open(&c, "val", &classes, &d)); /* only one part has it */
    assert_int_equal(dataset_count(d), 1);
    dataset_close(d);
    class_list_free(&classes);

    snprintf(list, sizeof list, "%s/one.tar,%s/one.tar", root, root);
    c = config_of(list);
    expect_error(&c, "train", &classes, STATUS_DATA, "the same image twice");

    snprintf(list, sizeof list, "%s/set", root);
    c = config_of(list);
    assert_ok(dataset_open(&c, "train", &classes, &d));
    assert_int_equal(dataset_count(d), 4);
    dataset_close(d);
    class_list_free(&classes);
}

static void compressed_and_broken_tars(void **state) {
    (void)state;
    char list[CONFIG_TEXT];
    ClassList classes = {0};
    make_tars();
    put_file(root, "x.tar.gz", "\x1f\x8b\x08\0junk that is long enough to be a file", 41);
    snprintf(list, sizeof list, "%s/x.tar.gz", root);
    DataConfig c = config_of(list);
    expect_error(&c, "train", &classes, STATUS_DATA, "gunzip it first");
    snprintf(list, sizeof list, "%s/one.tar,%s/x.tar.gz", root, root);
    c = config_of(list);
    expect_error(&c, "train", &classes, STATUS_DATA, "gunzip it first");
    snprintf(list, sizeof list, "%s/one.tar,%s", root, root);
    c = config_of(list);
    expect_error(&c, "train", &classes, STATUS_USAGE, "a folder in a list");
    snprintf(list, sizeof list, "%s/one.tar,%s/none.tar", root, root);
    c = config_of(list);
    expect_error(&c, "train", &classes, STATUS_IO, "none.tar");
    put_image(root, "picture.tar", "grey.jpg");
    snprintf(list, sizeof list, "%s/picture.tar", root);
    c = config_of(list);
    expect_error(&c, "train", &classes, STATUS_DATA, "not a tar archive, but a JPEG image");
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

static void allocation_failures_are_clean(void **state) {
    (void)state;
    make_flat();
    make_tars();
    char list[CONFIG_TEXT];
    snprintf(list, sizeof list, "%s/one.tar,%s/two.tar", root, root);
    DataConfig configs[3] = {config_of(root), config_of(root), config_of(list)};
    const char *splits[3] = {"train", "val", "train"};
    put_text(root, "labels.txt", "v1 b\nv2 a\nv3 b\n");
    put_text(root, "names.txt", "n01 x\nn02 y\n");
    in_root(configs[1].val_labels, "labels.txt");
    in_root(configs[0].class_names, "names.txt");
    int64_t live = mem_live();
    for (int i = 0; i < 3; i++) {
        for (int64_t n = 1;; n++) {
            ClassList classes = {0};
            Dataset *d;
            mem_fail_at(n);
            Status s = dataset_open(&configs[i], splits[i], &classes, &d);
            int pending = mem_fail_pending();
            mem_fail_at(0);
            if (s != (pending ? STATUS_OK : STATUS_MEMORY))
                fail_msg("%d, %d: %s", i, (int)n, status_message());
            dataset_close(d);
            class_list_free(&classes);
            assert_int_equal(mem_live(), live);
            if (pending) break;
            assert_true(n < 1000);
        }
    }
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

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(class_folders),
        TEST(empty_class_keeps_its_index),
        TEST(class_sets_must_agree),
        TEST(class_orders),
        TEST(readable_names),
        TEST(labels_files),
        TEST(labels_file_traps),
        TEST(kaggle_tree),
        TEST(odd_entries),
        TEST(long_paths),
        TEST(missing_things),
        TEST(unreadable_folder),
        TEST(tar_roots),
        TEST(compressed_and_broken_tars),
        TEST(limits_choose_a_fixed_subset),
        TEST(allocation_failures_are_clean),
        TEST(real_archives),
        TEST(options_reach_the_decoder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

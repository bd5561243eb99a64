package mien.app.settings;

import android.content.res.AssetManager;
import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.List;
import java.util.Scanner;
import org.junit.runner.JUnitCore;
import org.junit.runner.Result;
import org.junit.runner.notification.Failure;

/** Runs on this phone the very tests, against the very vectors, that the client passes elsewhere. */
final class SelfTest {
    private static final String LIST = "tests.txt";

    private final AssetManager assets;
    private final File folder;

    SelfTest(AssetManager assets, File folder) {
        this.assets = assets;
        this.folder = folder;
    }

    /** Returns what came of it; the vectors are put where the tests look for files. */
    Result run() throws IOException, ClassNotFoundException {
        copy("golden");
        System.setProperty("mien.tests", folder.getPath());
        System.setProperty("java.io.tmpdir", folder.getPath());
        List<Class<?>> tests = new ArrayList<>();
        try (InputStream in = assets.open(LIST)) {
            Scanner names = new Scanner(in, "UTF-8");
            while (names.hasNextLine()) {
                tests.add(Class.forName(names.nextLine()));
            }
        }
        return JUnitCore.runClasses(tests.toArray(new Class<?>[0]));
    }

    /** Returns the failures by name; a message never holds more than a vector's bytes, which are public. */
    static String failures(Result result) {
        StringBuilder text = new StringBuilder();
        for (Failure failure : result.getFailures()) {
            text.append("\n").append(failure.getTestHeader()).append(": ").append(failure.getMessage());
        }
        return text.toString();
    }

    private void copy(String path) throws IOException {
        String[] inside = assets.list(path);
        File target = new File(folder, path);
        if (inside != null && inside.length > 0) {
            for (String name : inside) {
                copy(path + "/" + name);
            }
            return;
        }
        Files.createDirectories(target.getParentFile().toPath());
        try (InputStream in = assets.open(path)) {
            Files.copy(in, target.toPath(), StandardCopyOption.REPLACE_EXISTING);
        }
    }
}

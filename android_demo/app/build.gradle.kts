plugins { id("com.android.application") }

fun version(of: String) = rootProject.extra[of] as String

android {
    namespace = "mien.app"
    compileSdk = 36
    defaultConfig {
        minSdk = 29
        targetSdk = 36
        ndk { abiFilters += listOf("arm64-v8a", "x86_64") }
    }
    compileOptions {
        sourceCompatibility = JavaVersion.VERSION_1_8
        targetCompatibility = JavaVersion.VERSION_1_8
    }
    packaging { jniLibs { useLegacyPackaging = true } }
    // The check in Settings runs the client's own tests, on vectors that tools/build_apk collects.
    sourceSets.named("main") {
        java.srcDir("../client/src/test/java")
        assets.srcDir("../tools/target/assets")
    }
    sourceSets.named("test") { java.setSrcDirs(emptyList<String>()) } // tools/draw_screens runs them
}

dependencies {
    implementation(project(":client"))
    implementation("com.microsoft.onnxruntime:onnxruntime-android:${version("onnxruntime")}")
    implementation("com.google.zxing:core:${version("zxing")}")
    implementation("junit:junit:${version("junit")}")
}
